"""Periodic schedules: what they publish and when, and which of their ticks are due."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Any, NamedTuple

from cronsim import CronSim, CronSimError

from sqlqueue.core.bounds import duration, time_zone
from sqlqueue.core.keys import GROUP_LENGTH, KEY_LENGTH, checked_consumed, checked_name, checked_text, did_you_mean
from sqlqueue.exceptions import LONGEST_DELAY, ConfigurationError, InvalidMessage

PERIODIC_TOPIC = "periodic"  # one partition, and declared by itself
SCHEDULE_LENGTH = 100  # characters of a name: with the due time it is an id
LAST, ALL, SKIP = "last", "all", "skip"
MISSED = (LAST, ALL, SKIP)
DIGEST_LENGTH = 16
OF_SETTINGS = ("cron", "every", "timezone", "missed", "topic", "key", "group", "payload")
UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SHORTEST_EVERY = 1.0  # seconds
CRON_LENGTH = 255
SINCE = datetime(2000, 1, 1, tzinfo=UTC)  # a cron that never fires is looked for from here


@dataclass(frozen=True, slots=True)
class ScheduleDefinition:
    """What a periodic schedule publishes, and when. payload: as JSON text; None: {"schedule": name, "tick": due
    time}."""

    name: str
    recurrence: Recurrence
    missed: str = LAST
    topic: str = PERIODIC_TOPIC
    key: str = ""
    group: str = ""
    payload: str | None = None

    def as_text(self) -> str:
        """Return it as JSON text, the same for the same definition."""
        own = {name: getattr(self, name) for name in ("missed", "topic", "key", "group", "payload")}
        recurrence = {name: getattr(self.recurrence, name) for name in ("cron", "every", "timezone")}
        return json.dumps({**recurrence, **own}, sort_keys=True)

    @property
    def digest(self) -> str:
        """What tells definitions apart: of the same name, and those of different names."""
        return hashlib.sha256(f"{self.name} {self.as_text()}".encode()).hexdigest()[:DIGEST_LENGTH]

    def payload_of(self, tick: datetime) -> Any:
        """Return what the tick of a due time carries."""
        if self.payload is not None:
            return json.loads(self.payload)
        return {"schedule": self.name, "tick": as_iso(tick)}


def from_text(name: str, text: str) -> ScheduleDefinition:
    """Return a definition that was stored. Raises ConfigurationError if this process cannot read it: its time zone may
    be unknown here, and a later version may write what this one does not know."""
    try:
        stored = json.loads(text)
        cron, every, zone = (stored.pop(option) for option in ("cron", "every", "timezone"))
        recurrence = checked_recurrence(cron or None, every or None, zone if cron else None)
        definition = ScheduleDefinition(name, recurrence, **stored)
        if definition.payload is not None:
            json.loads(definition.payload)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"the stored definition of schedule {name!r} cannot be read: {error!r}") from error
    return definition


def tick_id(name: str, tick: datetime) -> str:
    """Return the id of a tick: the schedule's name and the due time in UTC."""
    return f"{name}@{as_iso(tick)}"


def as_iso(moment: datetime) -> str:
    """Return a time in UTC as ISO 8601, with Z."""
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


class DueTicks(NamedTuple):
    """Ticks to publish. through: all ticks up to this time are among them or passed over; complete: nothing else is
    due; missed: whether some fell due while no process attended to the schedule."""

    ticks: list[datetime]
    through: datetime
    complete: bool
    missed: bool


def due_ticks(
    definition: ScheduleDefinition, through: datetime, attended_until: datetime, now: datetime, most: int
) -> DueTicks:
    """Return the ticks after `through` that are due now, at most so many.

    Those up to `attended_until` are late at worst, and all of them are published. Later ones were missed: `missed` says
    whether all, the last one, or none of them are.
    """
    recurrence = definition.recurrence
    boundary = min(max(attended_until, through), now)
    ticks = list(islice(recurrence.between(through, boundary), most))
    if len(ticks) == most:
        return DueTicks(ticks, ticks[-1], False, False)
    missed = recurrence.after(boundary) <= now
    if missed and definition.missed == ALL:
        ticks += islice(recurrence.between(boundary, now), most - len(ticks))
        if len(ticks) == most:
            return DueTicks(ticks, ticks[-1], False, True)
    elif missed and definition.missed == LAST and (last := recurrence.last(boundary, now)) is not None:
        ticks.append(last)
    return DueTicks(ticks, max(now, through), True, missed)


def checked_schedule(name: Any, remedy: str) -> str:
    """Return a schedule's name, or refuse it; remedy: what to do then."""
    try:
        return checked_name(name, "schedule", SCHEDULE_LENGTH)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}: {remedy}") from None


def checked_definition(
    name: str, recurrence: Recurrence, missed: Any, topic: Any, key: Any, group: Any, payload: str | None = None
) -> ScheduleDefinition:
    """Return a definition; raise ConfigurationError for what cannot be."""
    if missed not in MISSED:
        raise ConfigurationError(f"missed must be one of {', '.join(MISSED)}, not {missed!r}")
    checked_consumed(topic)
    try:
        checked_text(key, "key", KEY_LENGTH)
    except InvalidMessage as error:
        raise ConfigurationError(str(error)) from None
    if group != "":
        checked_name(group, "group", GROUP_LENGTH)
    return ScheduleDefinition(name, recurrence, missed, topic, key, group, payload)


def configured(given: Any, problems: list[str]) -> dict[str, ScheduleDefinition]:
    """Return the schedules of SQLQUEUE["SCHEDULES"], and note what is wrong with it."""
    found: dict[str, ScheduleDefinition] = {}
    for name, options in given.items():
        try:
            found[name] = _configured(name, options)
        except ConfigurationError as error:
            problems.append(f"SCHEDULES[{name!r}]: {error}")
    return found


def _configured(name: Any, options: Any) -> ScheduleDefinition:
    checked_schedule(name, "give it another name")
    if not isinstance(options, Mapping):
        raise ConfigurationError(f'it must be a dict, {{"cron": "*/5 * * * *", "topic": "sync"}}, not {options!r}')
    for option in options:
        if option not in OF_SETTINGS:
            raise ConfigurationError(f"there is no option {option!r}.{did_you_mean(str(option), OF_SETTINGS)}")
    if "topic" not in options:
        raise ConfigurationError("the topic is missing: say to which one it publishes")
    recurrence = checked_recurrence(options.get("cron"), options.get("every"), options.get("timezone"))
    try:
        payload = json.dumps(options["payload"], allow_nan=False) if "payload" in options else None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the payload cannot be JSON: {error}") from None
    if payload is not None and json.loads(payload) != options["payload"]:
        raise ConfigurationError(
            "the payload would not come back equal from JSON: use lists, and dicts whose keys are strings"
        )
    return checked_definition(
        name,
        recurrence,
        options.get("missed", LAST),
        options["topic"],
        options.get("key", ""),
        options.get("group", ""),
        payload,
    )


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
        object.__setattr__(self, "_zone", time_zone(self.timezone))
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
        if self.cron:  # what it yields backwards comes before the moment that it is given
            begin = (until + MICROSECOND).astimezone(self._zone)
            times = (local.astimezone(UTC) for local in CronSim(self.cron, begin, reverse=True))
            found = next((at for at in times if at <= until), None)
        else:
            found = self.after(until) - timedelta(seconds=self.every)
        return found if found is not None and found > after else None


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


def _check_cron(cron: str, zone: tzinfo) -> None:
    if len(cron.split()) != 5:
        raise ConfigurationError(
            f"cron {cron!r} must have five fields: minute, hour, day of month, month, day of week; "
            "for seconds use every=timedelta(seconds=…)"
        )
    try:
        never = next(CronSim(cron, SINCE.astimezone(zone)), None) is None
    except CronSimError as error:
        if str(error) != "Bad day-of-month":
            raise ConfigurationError(
                f"cron {cron!r} cannot be read: {error}; the fields are minute, hour, day of month, month, day of week"
            ) from None
        never = True
    if never:
        raise ConfigurationError(f"cron {cron!r} never fires: no month that it names has such a day; correct the date")
