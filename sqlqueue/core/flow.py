"""Flow: when a group works and how much, as its consumer's options say, and as an operator has changed that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any, Final

from sqlqueue.core.bounds import checked_whole, time_zone
from sqlqueue.exceptions import ConfigurationError

UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
MOST_OF_A_RATE: Final = 1_000_000_000
MOST_AT_ONCE: Final = 1_000_000  # handlers
RATE = re.compile(r"(\d{1,10})/([smhd])", re.ASCII)
UTC = timezone.utc
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 24 * 60
MINUTE: Final = timedelta(minutes=1)
HOURS_LENGTH: Final = 255  # characters
WINDOW = re.compile(r"(?:(?P<days>\S.*?)\s+)?(?P<begin>\d{1,2}:\d\d)\s*-\s*(?P<end>\d{1,2}:\d\d)", re.ASCII)
ZONE = re.compile(r"(?P<windows>.*?\d)\s+(?P<zone>[A-Za-z][\w+/-]*)", re.ASCII)
ADVICE: Final = 'write "22:00-06:00", with days and time zone "mon-fri 22:00-06:00, sat-sun 00:00-24:00 Europe/Berlin"'


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in a unit of time, such as "100/m". Raises ConfigurationError for what cannot be read."""

    text: str

    def __post_init__(self) -> None:
        found = RATE.fullmatch(self.text) if isinstance(self.text, str) else None
        if found is None or not 1 <= int(found[1]) <= MOST_OF_A_RATE:
            raise ConfigurationError(
                f"{self.text!r:.80} cannot be read: write how many (1 to {MOST_OF_A_RATE:,}) in a "
                'second, minute, hour or day, such as "10/s", "100/m", "5000/h" or "1/d"'
            )

    @property
    def per_second(self) -> float:
        """So many a second."""
        return self.count / self.seconds

    @property
    def count(self) -> int:
        """The number before the unit."""
        return int(self.text.split("/")[0])

    @property
    def seconds(self) -> float:
        """The seconds of the unit."""
        return UNITS[self.text.split("/")[1]]


@dataclass(frozen=True, slots=True)
class ActiveHours:
    """Times of the week, in a time zone: "22:00-06:00", "mon-fri 22:00-06:00 Europe/Berlin", several after commas.

    Days are those on which the hours begin: "fri 22:00-06:00" lasts until Saturday's morning; none named: every day. No
    time zone: UTC. Clocks are those on the wall: on the days on which these are changed, hours last longer or shorter.
    A time that they leave out is the one right after the gap, so that hours which lie in it as a whole do not open; a
    time that they show twice is the first one.

    Raises ConfigurationError for what cannot be read.
    """

    text: str
    _windows: tuple[tuple[frozenset[int], int, int], ...] = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip() or len(self.text) > HOURS_LENGTH:
            raise ConfigurationError(f"active hours {self.text!r:.80} cannot be read: {ADVICE}")
        zoned = ZONE.fullmatch(self.text.strip())
        windows, zone = (zoned["windows"], zoned["zone"]) if zoned else (self.text, "UTC")
        object.__setattr__(self, "_zone", time_zone(zone))
        object.__setattr__(self, "_windows", tuple(_window(part, self.text) for part in windows.split(",")))

    def __str__(self) -> str:
        return self.text

    def contains(self, now: datetime) -> bool:
        """Tell whether an aware time lies in the hours."""
        return any(begin <= now < end for begin, end in self._around(now, 1))

    def began(self, now: datetime) -> datetime | None:
        """Return when the hours began that an aware time lies in, in UTC; None if it lies outside. Hours that never end
        began eight days ago."""
        found: datetime | None = None
        reached: datetime | None = None
        for begin, end in sorted(self._around(now, 8)):
            if begin > now:
                break
            if reached is None or begin > reached:
                found, reached = begin, end
            reached = max(reached, end)
        return found if reached is not None and reached > now else None

    def _around(self, now: datetime, days: int) -> Iterator[tuple[datetime, datetime]]:
        """Yield the hours that begin so many days before and after the day of an aware time, as pairs in UTC, but for
        those that the clocks leave out."""
        today = now.astimezone(self._zone).date()
        for distance in range(-days, days + 1):
            day = today + timedelta(days=distance)
            for weekdays, begin, end in self._windows:
                if day.weekday() in weekdays and (opens := self._at(day, begin)) < (closes := self._at(day, end)):
                    yield opens, closes

    def _at(self, day: date, minutes: int) -> datetime:
        local = datetime(day.year, day.month, day.day, tzinfo=self._zone) + timedelta(minutes=minutes)  # on the wall
        while (at := local.astimezone(UTC)).astimezone(self._zone) != local:  # clocks leave it out
            local += MINUTE
        return at


def _window(part: str, text: str) -> tuple[frozenset[int], int, int]:
    """Return the days and the minutes of the day at which hours begin and end; the end may lie on the next day."""
    found = WINDOW.fullmatch(part.strip())
    if found is None:
        raise ConfigurationError(f"active hours {text!r} cannot be read: {ADVICE}")
    begin, end = (_minutes(found[name], text) for name in ("begin", "end"))
    if begin in (end, DAY_MINUTES):
        raise ConfigurationError(
            f'active hours {text!r}: {found["begin"]}-{found["end"]} is empty; a day is "00:00-24:00"'
        )
    days = _days(found["days"], text) if found["days"] else frozenset(range(7))
    return days, begin, end if end > begin else end + DAY_MINUTES


def _minutes(time: str, text: str) -> int:
    hours, minutes = (int(part) for part in time.split(":"))
    if minutes > 59 or hours * 60 + minutes > DAY_MINUTES:
        raise ConfigurationError(f"active hours {text!r}: there is no time {time}; they go from 00:00 to 24:00")
    return hours * 60 + minutes


def _days(names: str, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in names.lower().split():
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ConfigurationError(
                f"active hours {text!r}: {part!r} is no day; days are {' '.join(DAYS)}, or mon-fri"
            )
        begin = DAYS.index(first)
        length = (DAYS.index(last) - begin) % 7 if dash else 0
        found.update((begin + step) % 7 for step in range(length + 1))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Flow:
    """The options of a group that limit its work; None: no limit. active: when it works; rate: how many messages start
    in a time; concurrency: how many handlers run at once; budget: how many attempts may fail in a time before it tries
    one message at a time; rate_per_key: how many messages of one key start in a time; concurrency_per_key: how many of
    one key are in flight at once. Limits hold for all its processes together."""

    active: ActiveHours | None = None
    rate: Rate | None = None
    concurrency: int | None = None
    budget: Rate | None = None
    rate_per_key: Rate | None = None
    concurrency_per_key: int | None = None

    @property
    def shared(self) -> bool:
        """Whether its processes have to share something out; all messages of a key are with one of them."""
        return (self.rate, self.concurrency, self.budget) != (None, None, None)

    def as_dict(self) -> dict[str, Any]:
        """Return the options that are given, as JSON has them."""
        given = {option: getattr(self, name) for option, (name, _) in OPTIONS.items()}
        return {option: getattr(one, "text", one) for option, one in given.items() if one is not None}


NO_FLOW = Flow()
_at_once = partial(checked_whole, name="it", most=MOST_AT_ONCE, least=1)
# The options as a user gives them: the field of a flow, and what reads it.
OPTIONS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "active": ("active", ActiveHours),
    "rate_limit": ("rate", Rate),
    "rate_limit_per_key": ("rate_per_key", Rate),
    "concurrency_limit": ("concurrency", _at_once),
    "concurrency_limit_per_key": ("concurrency_per_key", _at_once),
    "retry_budget": ("budget", Rate),
}


def checked_flow(values: Mapping[str, Any], problems: list[str]) -> Flow:
    """Return the flow of options as a user gives them, None for what is not given; note what cannot be."""
    made: dict[str, Any] = {}
    for option, (name, make) in OPTIONS.items():
        try:
            made[name] = None if values.get(option) is None else make(values[option])
        except ConfigurationError as error:
            problems.append(f"{option}: {error}")
    return Flow(**made)


def stored(flow: Flow, lifted: Iterable[str] = ()) -> str:
    """Return the text that stores a flow; "" for one without limits. lifted: options that are to have no limit."""
    given = {**flow.as_dict(), **dict.fromkeys(lifted)}
    return json.dumps(given, sort_keys=True) if given else ""


def in_effect(declared: str | None, overrides: str | None) -> Flow:
    """Return the flow of a group from what its consumers have declared and what an operator has overridden, each as it
    is stored. Options that this version does not know are left out."""
    given = {**_options(declared), **_options(overrides)}
    return checked_flow(given, []) if given else NO_FLOW


def _options(text: str | None) -> dict[str, Any]:
    return {name: value for name, value in json.loads(text).items() if name in OPTIONS} if text else {}
