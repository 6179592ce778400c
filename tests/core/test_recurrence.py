"""When a schedule is due: cron fields as Debian's cron reads them, daylight saving, intervals, and what cannot be."""

from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.core.periodic import Recurrence, checked_recurrence
from sqlqueue.exceptions import ConfigurationError

pytestmark = pytest.mark.once

UTC = timezone.utc
BERLIN = "Europe/Berlin"
BACK = datetime(2026, 10, 24, 22, tzinfo=UTC)  # midnight there; 02:00 to 03:00 comes twice
FORWARD = datetime(2026, 3, 28, 23, tzinfo=UTC)  # midnight there; 02:00 to 03:00 does not come


def due(cron: str, after: datetime, count: int, zone: str = BERLIN) -> list[str]:
    """Return the next times in UTC."""
    found = []
    recurrence = Recurrence(cron, timezone=zone)
    for _ in range(count):
        after = recurrence.after(after)
        found.append(after.strftime("%d %H:%M"))
    return found


class TestDaylightSaving:
    def test_a_fixed_time_in_the_repeated_hour_comes_once_the_first_time(self) -> None:
        assert due("30 2 * * *", BACK, 2) == ["25 00:30", "26 01:30"]

    def test_a_step_comes_at_both_half_past_twos(self) -> None:
        assert due("*/30 * * * *", BACK + timedelta(hours=2, minutes=-1), 5) == [
            "25 00:00",
            "25 00:30",  # 02:30 in summer time
            "25 01:00",
            "25 01:30",  # 02:30 in winter time
            "25 02:00",
        ]

    def test_every_hour_comes_in_both_passes(self) -> None:
        assert due("30 * * * *", BACK + timedelta(hours=2), 3) == ["25 00:30", "25 01:30", "25 02:30"]

    def test_a_search_that_begins_in_the_second_pass_finds_nothing_of_the_first(self) -> None:
        second_ten_past_two = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
        assert due("30 2 * * *", second_ten_past_two, 1) == ["26 01:30"]

    def test_a_fixed_time_in_the_missing_hour_comes_right_after_it(self) -> None:
        assert due("30 2 * * *", FORWARD, 2) == ["29 01:00", "30 00:30"]

    def test_several_fixed_times_in_the_missing_hour_come_once(self) -> None:
        assert due("0,15,30,45 2 * * *", FORWARD, 2) == ["29 01:00", "30 00:00"]

    def test_a_step_goes_on_after_the_missing_hour(self) -> None:
        assert due("*/30 * * * *", FORWARD + timedelta(hours=1, minutes=29), 3) == ["29 00:30", "29 01:00", "29 01:30"]

    def test_a_midnight_that_is_missing_comes_at_one(self) -> None:
        assert due("0 0 * * *", datetime(2018, 11, 3, 12, tzinfo=UTC), 2, "America/Sao_Paulo") == [
            "04 03:00",
            "05 02:00",
        ]

    @pytest.mark.parametrize(
        ("cron", "zone", "after", "ticks"),
        [
            ("30 2 * * *", "America/New_York", "2026-03-08T00", ["08 07:00", "09 06:30"]),
            ("30 1 * * *", "America/New_York", "2026-11-01T00", ["01 05:30", "02 06:30"]),
            ("10,20 2 * * *", "Australia/Lord_Howe", "2026-10-03T12", ["03 15:30", "04 15:10"]),
            ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12", ["04 14:45", "05 15:15"]),
            ("30 2 * * *", "Pacific/Apia", "2011-12-29T13", ["30 10:00", "30 12:30"]),  # of the Friday, of the Saturday
            ("30 2 * * 5", "Pacific/Apia", "2011-12-24T00", ["30 10:00", "05 12:30"]),
            ("0 * * * *", "Pacific/Apia", "2011-12-30T08", ["30 09:00", "30 10:00", "30 11:00"]),
            ("*/30 2 * * *", BERLIN, "2026-03-28T02", ["30 00:00", "30 00:30"]),  # elapsed time: none on the 29th
        ],
    )
    def test_what_is_left_out_or_comes_twice_is_the_same_in_every_zone(
        self, cron: str, zone: str, after: str, ticks: list[str]
    ) -> None:
        begin = datetime.fromisoformat(f"{after}:00").replace(tzinfo=UTC)
        assert due(cron, begin, len(ticks), zone) == ticks

    @pytest.mark.parametrize("zone", [BERLIN, "Australia/Lord_Howe", "America/St_Johns", "Africa/Cairo"])
    @pytest.mark.parametrize("cron", ["*/7 * * * *", "30 2 * * *", "0 0 * * *", "59 23 * * 0", "15 */3 * * *"])
    def test_times_only_grow_and_their_clocks_show_what_cron_says(self, zone: str, cron: str) -> None:
        local = ZoneInfo(zone)
        recurrence, at = Recurrence(cron, timezone=zone), datetime(2026, 1, 1, tzinfo=UTC)
        minutes = {int(part) for part in cron.split()[0].split(",") if part.isdigit()} or set(range(0, 60, 7))
        shifted = 0
        while at < datetime(2026, 12, 31, tzinfo=UTC) and shifted < 2000:
            following = recurrence.after(at)
            assert at < following <= at + timedelta(days=8)
            at, shifted = following, shifted + 1
            # A time that is left out is due when the clocks have just gone forward.
            before = (at - timedelta(minutes=1)).astimezone(local)
            forward = at.astimezone(local).utcoffset() != before.utcoffset()
            assert at.astimezone(local).minute in minutes or forward


class TestAMatterOfFields:
    def test_day_of_month_or_day_of_week(self) -> None:
        assert due("0 0 13 * 5", datetime(2026, 2, 1, tzinfo=UTC), 3, "UTC") == ["06 00:00", "13 00:00", "20 00:00"]

    def test_a_leap_day_is_found(self) -> None:
        assert Recurrence("0 0 29 2 *").after(datetime(2096, 3, 1, tzinfo=UTC)) == datetime(2104, 2, 29, tzinfo=UTC)

    def test_names_and_the_last_day(self) -> None:
        assert due("0 0 L FEB *", datetime(2026, 1, 1, tzinfo=UTC), 1, "UTC") == ["28 00:00"]


class TestAnInterval:
    def test_it_counts_from_the_epoch(self) -> None:
        after = datetime(2026, 1, 1, 0, 3, 20, 7, tzinfo=UTC)
        assert Recurrence(every=300).after(after) == datetime(2026, 1, 1, 0, 5, tzinfo=UTC)

    def test_a_time_itself_is_not_after_it(self) -> None:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        assert Recurrence(every=1.5).after(at) == at + timedelta(seconds=1.5)


TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
RECURRENCES = st.sampled_from(
    [
        Recurrence(every=7),
        Recurrence(every=86_400.5),
        Recurrence("*/10 * * * *", timezone=BERLIN),
        Recurrence("30 2 * * *", timezone=BERLIN),
        Recurrence("0 0 29 2 *"),
    ]
)


@given(RECURRENCES, TIMES, st.timedeltas(timedelta(), timedelta(hours=30)))
def test_the_last_time_is_the_last_of_all(recurrence: Recurrence, after: datetime, long: timedelta) -> None:
    every = list(islice(recurrence.between(after, after + long), 20_000))
    assert recurrence.last(after, after + long) == (every[-1] if every else None)


def test_the_last_time_of_ten_years_is_found_at_once() -> None:
    after = datetime(2020, 1, 1, tzinfo=UTC)
    until = datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC)
    for recurrence in (Recurrence("* * * * *", timezone=BERLIN), Recurrence(every=15)):
        last = recurrence.last(after, until)
        assert last is not None
        assert until - last <= timedelta(seconds=30)


@pytest.mark.parametrize(
    ("cron", "every", "zone", "why"),
    [
        ("0 0 30 2 *", None, None, "never fires"),
        ("0 0 31 4,6,9,11 *", None, BERLIN, "never fires"),
        ("0 0 32 1 *", None, None, "never fires"),
        ("60 * * * *", None, None, "Bad minute"),
        ("*/0 * * * *", None, None, "Bad minute"),
        ("* * * *", None, None, "five fields"),
        ("* * * * * *", None, None, r"every=timedelta\(seconds"),
        ("@daily", None, None, "five fields"),
        ("", None, None, "five fields"),
        (5, None, None, "five fields"),
        ("* " * 200, None, None, "is the most"),
        ("* * * * *", None, "Mars/Olympus", "tzdata"),
        ("* * * * *", None, "Europe", "tzdata"),
        ("* * * * *", None, "../../etc/passwd", "tzdata"),
        ("* * * * *", None, "", "tzdata"),
        ("* * * * *", None, 1, "tzdata"),
        (None, None, None, "neither is given"),
        ("* * * * *", 60, None, "both are given"),
        (None, 60, BERLIN, "leave it out"),
        (None, 0, None, "every must be seconds"),
        (None, timedelta(seconds=-5), None, "every must be seconds"),
        (None, 0.5, None, "from 1 to"),
        (None, float("nan"), None, "every must be seconds"),
        (None, float("inf"), None, "every must be seconds"),
        (None, timedelta(days=20 * 365), None, "every must be seconds"),
        (None, True, None, "every must be seconds"),
        (None, "60", None, "every must be seconds"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(cron: Any, every: Any, zone: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        checked_recurrence(cron, every, zone)
