"""Forgets, after each test here, which topics it has declared."""

from typing import Any

import pytest

from tests.admin.conftest import staff  # noqa: F401  a fixture, as that below
from tests.consumers.conftest import control_threads  # noqa: F401


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `work_on` has declared: nothing of the apps' own."""
    from sqlqueue.contrib.people import topics  # the apps are ready only now

    topics.topics()
    monkeypatch.setattr(topics, "declared", {})
    return topics.declared
