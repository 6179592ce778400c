"""Recurrences: the times at which a periodic schedule is due, by a cron expression or an interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from sqlqueue.core.bounds import duration
from sqlqueue.exceptions import LONGEST_DELAY, ConfigurationError

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SHORTEST_EVERY = 1.0  # seconds
CRON_LENGTH = 255
SINCE = datetime(2000, 1, 1, tzinfo=UTC)  # a cron that never fires is looked for from here
FIRST_WINDOW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """When a schedule is due: by a cron expression of five fields in a time zone, or every so many seconds, counted
    from 1970-01-01T00:00Z. Exactly one of cron ("": none) and every (0.0: none) is given.

    Cron follows Debian's cron. Fixed times (neither minute nor hour begins with *) are due once a day: in the hour that
    is repeated when clocks go back the first time, and where an hour is left out right after it. Others follow elapsed
    time, so that */30 is due at both 02:30s.

    Raises ConfigurationError for what cannot be.
    """

    cron: str = ""
    every: float = 0.0
    timezone: str = "UTC"
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.timezone))
        if self.cron:
            _check_cron(self.cron, self._zone)

    def __str__(self) -> str:
        if self.cron:
            return f"{self.cron} {self.timezone}"
        return f"every {timedelta(seconds=self.every)}"

    def after(self, moment: datetime) -> datetime:
        """Return the first time after an aware one, in UTC. Raises OverflowError behind the last year."""
        if not self.cron:
            step = round(self.every * 1_000_000)
            return EPOCH + ((moment - EPOCH) // MICROSECOND // step + 1) * step * MICROSECOND
        # What was due in a left-out hour may be due together, and a start in a repeated hour begins in its first pass.
        for local in CronSim(self.cron, moment.astimezone(self._zone)):
            at = local.astimezone(UTC)
            if at > moment:
                return at
        raise OverflowError(f"{self} is not due after {moment}")

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the times after one moment and up to another one."""
        at = after
        while at < until and (at := self.after(at)) <= until:
            yield at

    def last(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last time after one moment and up to another one, without going through all of them."""
        window = FIRST_WINDOW
        while after < until:
            begin = max(after, until - window)
            found = None
            for found in self.between(begin, until):  # noqa: B007 - the last one counts
                pass
            if found is not None or begin == after:
                return found
            window *= 2
        return None


def checked_recurrence(cron: Any, every: Any, zone: Any) -> Recurrence:
    """Return the recurrence of what a user gives, None for what is not given; raise ConfigurationError if it cannot
    be."""
    if (cron is None) == (every is None):
        given = "both are given" if cron is not None else "neither is given"
        raise ConfigurationError(f'give cron ("0 3 * * *") or every (timedelta(minutes=5)), one of them: {given}')
    if every is not None:
        if zone is not None:
            raise ConfigurationError("timezone has no effect with every, which counts elapsed time: leave it out")
        problems: list[str] = []
        seconds = duration(every, "every", problems, SHORTEST_EVERY, LONGEST_DELAY)
        if seconds is None:
            raise ConfigurationError(problems[0])
        return Recurrence(every=seconds)
    if not isinstance(cron, str) or not cron.strip():
        raise ConfigurationError(f'cron must be a string of five fields, such as "0 3 * * *", not {cron!r}')
    if len(cron) > CRON_LENGTH:
        raise ConfigurationError(f"cron has {len(cron)} characters; {CRON_LENGTH} is the most")
    return Recurrence(cron=" ".join(cron.split()), timezone="UTC" if zone is None else zone)


def _zone(name: Any) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        raise ConfigurationError(
            f"timezone {name!r} is not known: use a name such as 'Europe/Berlin' (without the system's time zones, "
            "the package tzdata has them)"
        ) from None


def _check_cron(cron: str, zone: tzinfo) -> None:
    if len(cron.split()) != 5:
        raise ConfigurationError(
            f"cron {cron!r} must have five fields: minute, hour, day of month, month, day of week; "
            "for seconds use every=timedelta(seconds=…)"
        )
    try:
        never = next(CronSim(cron, SINCE.astimezone(zone)), None) is None
    except CronSimError as error:
        if str(error) == "Bad day-of-month" and _days_are_numbers(cron):
            never = True
        else:
            raise ConfigurationError(
                f"cron {cron!r} cannot be read: {error}; the fields are minute, hour, day of month, month, day of week"
            ) from None
    if never:
        raise ConfigurationError(f"cron {cron!r} never fires: no month that it names has such a day; correct the date")


def _days_are_numbers(cron: str) -> bool:
    """Tell whether the day of month can be read by itself, so that it is the month that lacks it."""
    minute, hour, day, _, weekday = cron.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", SINCE)
    except CronSimError:
        return False
    return True
