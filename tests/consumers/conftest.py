"""Watches, in every test here, that only control threads touch what is known of partitions."""

from collections.abc import Iterator

import pytest

from tests.control_threads import Guard, guarded


@pytest.fixture(autouse=True)
def control_threads() -> Iterator[Guard]:
    """Fail the test if another thread has touched the state of a partition, or several functions write outcomes."""
    with guarded() as guard:
        yield guard
    assert not guard.trespasses, sorted(guard.trespasses)
    assert guard.writers <= {"finish"}, guard.writers
