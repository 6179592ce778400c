"""Active hours: which times lie in them, when they began, and what cannot be read."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from sqlqueue.core.flow import ActiveHours
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
    always = ActiveHours("00:00-24:00").began(utc("2026-11-29T13:00"))
    assert always is not None
    assert utc("2026-11-29T13:00") - always > timedelta(days=8)


# In Berlin 02:00 is 03:00 at 01:00Z, in New York at 07:00Z; on Lord Howe 02:00 is 02:30 at 15:30Z of the day before. Of
# Samoa's calendar the Friday 2011-12-30 is missing: from 10:00Z it is Saturday. In São Paulo midnight was 01:00.
@pytest.mark.parametrize(
    ("text", "opens", "closes"),
    [
        ("02:30-03:15 Europe/Berlin", "2026-03-29T01:00", "2026-03-29T01:15"),
        ("01:00-02:30 Europe/Berlin", "2026-03-29T00:00", "2026-03-29T01:00"),
        ("02:00-03:30 Europe/Berlin", "2026-03-29T01:00", "2026-03-29T01:30"),
        ("sat 22:00-02:30 Europe/Berlin", "2026-03-28T21:00", "2026-03-29T01:00"),
        ("sun 02:59-02:30 Europe/Berlin", "2026-03-29T01:00", "2026-03-30T00:30"),
        ("02:15-03:01 America/New_York", "2026-03-08T07:00", "2026-03-08T07:01"),
        ("00:30-02:01 America/New_York", "2026-03-08T05:30", "2026-03-08T07:00"),
        ("02:10-02:45 Australia/Lord_Howe", "2026-10-03T15:30", "2026-10-03T15:45"),
        ("01:45-02:20 Australia/Lord_Howe", "2026-10-03T15:15", "2026-10-03T15:30"),
        ("00:30-02:00 America/Sao_Paulo", "2018-11-04T03:00", "2018-11-04T04:00"),
        ("fri 22:00-06:00 Pacific/Apia", "2011-12-30T10:00", "2011-12-30T16:00"),
        ("thu 22:00-06:00 Pacific/Apia", "2011-12-30T08:00", "2011-12-30T10:00"),
        ("02:30-03:15 Europe/Berlin", "2026-10-25T00:30", "2026-10-25T02:15"),
        ("01:00-02:30 Europe/Berlin", "2026-10-24T23:00", "2026-10-25T00:30"),
        ("02:15-02:30 Europe/Berlin", "2026-10-25T00:15", "2026-10-25T00:30"),
        ("01:30-03:00 America/New_York", "2026-11-01T05:30", "2026-11-01T08:00"),
        ("00:00-01:30 America/New_York", "2026-11-01T04:00", "2026-11-01T05:30"),
        ("01:45-02:15 Australia/Lord_Howe", "2026-04-04T14:45", "2026-04-04T15:45"),
    ],
)
def test_a_time_that_clocks_leave_out_is_right_after_the_gap_and_one_that_comes_twice_the_first(
    text: str, opens: str, closes: str
) -> None:
    hours, begin, end = ActiveHours(text), utc(opens), utc(closes)
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    times = [begin - hour + minute * n for n in range((end - begin + 2 * hour) // minute)]
    opened = [time for time in times if hours.contains(time)]
    assert (opened[0], opened[-1] + minute, len(opened)) == (begin, end, (end - begin) // minute)
    assert hours.began(end - minute) == begin


@pytest.mark.parametrize(
    ("text", "day", "opens"),
    [
        ("02:15-02:45 Europe/Berlin", "2026-03-29", "2026-03-30T00:15"),
        ("sun 02:00-03:00 Europe/Berlin", "2026-03-29", "2026-04-05T00:00"),
        ("02:00-02:30 America/New_York", "2026-03-08", "2026-03-09T06:00"),
        ("02:00-02:30 Australia/Lord_Howe", "2026-10-04", "2026-10-04T15:00"),
        ("fri 08:00-17:00 Pacific/Apia", "2011-12-30", "2012-01-05T18:00"),
    ],
)
def test_hours_that_clocks_leave_out_as_a_whole_do_not_open(text: str, day: str, opens: str) -> None:
    hours, begin, following = ActiveHours(text), utc(day) - timedelta(hours=11), utc(opens)
    times = [begin + timedelta(minutes=5 * n) for n in range(25 * 12)]
    assert [time for time in times if time < following and (hours.contains(time) or hours.began(time))] == []


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
