"""Active hours: which times lie in them, when they began, and what cannot be read."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from sqlqueue.core.active_hours import ActiveHours
from sqlqueue.exceptions import ConfigurationError

pytestmark = pytest.mark.once


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


# 2026-11-23 is a Monday. Berlin's clocks go forward on 2026-03-29, and back on 2026-10-25, each a Sunday.
@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-06:00", ["2026-11-23T22:00", "2026-11-23T05:59"], ["2026-11-23T21:59", "2026-11-23T06:00"]),
        ("9:30-17:00", ["2026-11-23T09:30"], ["2026-11-23T09:29", "2026-11-23T17:00"]),
        ("fri 22:00-06:00", ["2026-11-27T23:00", "2026-11-28T05:00"], ["2026-11-27T05:00", "2026-11-28T22:30"]),
        ("mon-fri 08:00-18:00, SAT 09:00-12:00", ["2026-11-23T08:00", "2026-11-28T09:00"], ["2026-11-29T10:00"]),
        ("sat-mon 00:00-24:00", ["2026-11-28T00:00", "2026-11-30T23:59"], ["2026-12-01T00:00"]),
        ("mon wed 00:00-01:00", ["2026-11-25T00:30"], ["2026-11-24T00:30"]),
        ("22:00-06:00 Europe/Berlin", ["2026-11-23T21:00", "2026-07-23T20:00"], ["2026-11-23T20:59"]),
        ("22:00-06:00 America/New_York", ["2026-11-24T03:00"], ["2026-11-24T02:00"]),
        ("02:30-04:00 Europe/Berlin", ["2026-03-29T01:30", "2026-10-25T02:59"], ["2026-03-29T02:00"]),
    ],
)
def test_a_time_lies_in_the_hours_or_not(text: str, inside: list[str], outside: list[str]) -> None:
    hours = ActiveHours(text)
    assert [hours.contains(utc(one)) for one in inside] == [True] * len(inside)
    assert [hours.contains(utc(one)) for one in outside] == [False] * len(outside)


def test_hours_that_follow_one_another_began_with_the_first() -> None:
    hours = ActiveHours("fri 20:00-24:00, sat-sun 00:00-24:00")
    assert hours.began(utc("2026-11-29T13:00")) == utc("2026-11-27T20:00")
    assert hours.began(utc("2026-11-27T19:59")) is None
    assert hours.next_begin(utc("2026-11-25T12:00")) == utc("2026-11-27T20:00")
    always = ActiveHours("00:00-24:00").began(utc("2026-11-29T13:00"))
    assert always is not None
    assert utc("2026-11-29T13:00") - always > timedelta(days=8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        (22, "cannot be read"),
        ("22-06", "cannot be read"),
        ("22:00-06:00;", "cannot be read"),
        ("22:00-25:00", "there is no time 25:00"),
        ("22:60-06:00", "there is no time 22:60"),
        ("08:00-08:00", "is empty"),
        ("24:00-06:00", "is empty"),
        ("someday 22:00-06:00", "'someday' is no day"),
        ("mon-funday 22:00-06:00", "'mon-funday' is no day"),
        ("22:00-06:00 Europe/Bärlin", "cannot be read"),
        ("22:00-06:00 Europe/Berlina", "time zone 'Europe/Berlina' is not known"),
        ("1" * 300, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_write(text: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ActiveHours(text)
