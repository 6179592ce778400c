"""The words of the dialects mean the same to every vendor."""

from datetime import datetime

import pytest
from django.db import connection

from sqlqueue.database.dialects import execute

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("microseconds", [0, 1, -1, 3, -3, 1_500_000, -1_500_000, 10**15])
@pytest.mark.parametrize("word", ["earlier", "later"])
def test_a_time_can_be_moved_by_any_span(word: str, microseconds: int) -> None:
    """A hand that ended while its settle was on its way ended a moment after "now": its receipt has a time, too."""
    sign = 1 if word == "later" else -1
    now, moved = execute("default", f"SELECT {{now}}, {{{word}}}", (microseconds,)).fetchone()
    assert moved is not None
    if connection.vendor == "sqlite":
        now, moved = datetime.fromisoformat(now), datetime.fromisoformat(moved)
    assert (moved - now).total_seconds() == pytest.approx(sign * microseconds / 1e6, abs=0.01)
