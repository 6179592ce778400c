"""Whether each tick of the periodic schedules is in the log once, at its time, and none is missing that must not be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timezone

from tests.soak.job_records import Jobs, LogEntry
from tests.soak.workload import JOB_READERS, LEASE_DURATION, SCHEDULES, TICKS, Schedule


def due_of(entry: LogEntry) -> float:
    """Return when a tick was due: its id says so. Raises ValueError for an id that is no tick's."""
    _, _, text = entry.id.partition("@")
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def is_tick(entry: LogEntry) -> bool:
    """Tell whether the id is that of a tick, at a time at which its schedule is due."""
    name = entry.id.partition("@")[0]
    return name in SCHEDULES and due_of(entry) % SCHEDULES[name].every == 0


def by_schedule(jobs: Jobs) -> dict[str, dict[float, LogEntry]]:
    """Return the ticks in the log by schedule and due time."""
    found: dict[str, dict[float, LogEntry]] = defaultdict(dict)
    for entry in jobs.log:
        if entry.topic == TICKS and is_tick(entry):
            found[entry.id.partition("@")[0]].setdefault(due_of(entry), entry)
    return found


def wrong_ticks(jobs: Jobs) -> Iterator[str]:
    """Yield what is wrong with the ticks in the log."""
    schedules = by_schedule(jobs)
    for entry in jobs.log:
        if entry.topic == TICKS:
            yield from wrong_tick(entry, schedules)
    for name, (before, after) in jobs.ticks_until.items():
        ticks = schedules[name]
        for due in ticks:
            if due > after:
                yield f"{ticks[due].id} was published although the schedule was paused"
        yield from missing(jobs, name, ticks, before)


def wrong_tick(entry: LogEntry, schedules: dict[str, dict[float, LogEntry]]) -> Iterator[str]:
    """Yield what is wrong with one tick."""
    if not is_tick(entry):
        yield f"{entry.id} is no tick of a schedule"
        return
    name, due = entry.id.partition("@")[0], due_of(entry)
    if schedules[name][due] is not entry:
        yield f"{entry.id} is in the log twice"
    if entry.entered < due:
        yield f"{entry.id} was published {due - entry.entered:.3f} s before it was due"
    text = datetime.fromtimestamp(due, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    if entry.group != JOB_READERS[0].group or entry.payload != {"schedule": name, "tick": text}:
        yield f"{entry.id} is for group {entry.group!r}, and has {entry.payload}"


def missing(jobs: Jobs, name: str, ticks: dict[float, LogEntry], until: float) -> Iterator[str]:
    """Yield the ticks that are not in the log and have to be.

    With missed="all" none may be missing between the first and the moment at which the schedule was ended. Others are
    left out if no process attended to them: so not for as long as a lease after one was published.
    """
    schedule = SCHEDULES[name]
    if not ticks:
        if schedule.every < LEASE_DURATION:
            yield f"no tick of {name} is in the log"
        return
    for due in left_out(schedule, ticks, until):
        if schedule.missed == "all":
            yield f"{name} has no tick of {due:.0f}"
            continue
        # What was published late does not tell that a process attended when this one was due.
        last = max((before for before, tick in ticks.items() if tick.entered < due), default=due - 2 * LEASE_DURATION)
        if due <= last + LEASE_DURATION and not paused(jobs, last, due):
            yield f"{name} has no tick of {due:.0f}, and had one {due - last:.0f} s before it"


def left_out(schedule: Schedule, ticks: dict[float, LogEntry], until: float) -> Iterator[float]:
    """Yield when ticks were due, between the first one and the end, that are not in the log."""
    due = min(ticks) + schedule.every
    while due <= until:
        if due not in ticks:
            yield due
        due += schedule.every


def paused(jobs: Jobs, low: float, high: float) -> bool:
    """Tell whether the schedules were paused in a span of the database's time."""
    return any(began + jobs.clock < high and ended + jobs.clock > low for began, ended in jobs.pauses)
