"""What may be wrong with everyday jobs, beside what the checker finds in them as in any message: ticks, named messages,
results, batches, calls, limits, filters, and what expires."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.soak import batches, calls, filters, limits
from tests.soak.explanations import Explanations
from tests.soak.job_records import Enqueued, LogEntry, TaskEnd
from tests.soak.offers import wrong_offers
from tests.soak.records import Handling, Record
from tests.soak.ticks import by_schedule, left_out, wrong_ticks
from tests.soak.workload import FLEETING, JOB_READERS, LEASE_DURATION, NAMED, SCHEDULES, TASK_ERRORS, TICKS

VIOLATIONS = {
    "ticks wrong": "a tick missing, twice, too early, or left out although a process attended to its schedule",
    "names wrong": "cancelled or replaced and there all the same, or never there; or told what cannot be",
    "results wrong": "a task that did not end as it had to, or a result that is not what the handler returned",
    "batches wrong": "counts that are not what its members came to, or a callback missing, twice, or too early",
    "calls wrong": "a reply that is not that of the attempt acked first, none although there was one, or too late",
    "limits exceeded": "more messages begun, or more handlers at once, than a group's limits allow its processes",
    "filters wrong": "handled although the filter leaves it out, or left out and not counted",
    "handled too late": "begun after it had expired",
}
EXPIRED = "expired"  # the error of a dead letter
TOO_LATE = 1.0  # seconds after its time in which a handler may begin, on a machine of its own
WANTED = "tests.soak.tasks.Wanted"


@dataclass
class JobChecks:
    """The checks of one run. found: takes the kind of a violation, and what it is."""

    record: Record
    explanations: Explanations
    found: Callable[[str, str], None]

    def look(self) -> None:
        """Look for everything."""
        for what in wrong_ticks(self.record.jobs):
            self.found("ticks wrong", what)
        for what in wrong_offers(self.record.jobs):
            self.found("names wrong", what)
        if self.record.drained:
            self._look_at_tasks()
            for what in batches.wrong_batches(self.record):
                self.found("batches wrong", what)
        for what in calls.CallChecks(self.record, self.explanations).wrong():
            self.found("calls wrong", what)
        for what in limits.exceeded(self.record, self.explanations):
            self.found("limits exceeded", what)
        for what in filters.wrong_filters(self.record, self.explanations):
            self.found("filters wrong", what)
        self._look_at_kept_results()
        self._look_at_expiry()

    def _look_at_tasks(self) -> None:
        dead = Counter(self.record.jobs.dead_tasks)
        for task in self.record.jobs.enqueued:
            end = self.record.jobs.ends.get(task.id)
            if end is None:
                if task.told:
                    self.found("results wrong", f"{task} is not there")
            elif task.back:
                self.found("results wrong", f"{task} was taken back, and is {end}")
            elif end != expected_end(task):
                self.found("results wrong", f"{task} is {end}")
            elif dead[task.id] != (end.status == "FAILED"):
                self.found("results wrong", f"{task} is {end}, and {dead[task.id]} dead letters")

    def _look_at_kept_results(self) -> None:
        values = {(entry.topic, entry.id): entry.payload.get("value") for entry in self.record.jobs.log}
        dead = {(each.topic, each.group, each.id) for each in self.record.dead}
        kept: set[tuple[str, str, str]] = set()
        for result in self.record.jobs.results:
            kept.add((result.topic, result.group, result.id))
            if (result.topic, result.group, result.id) in dead:
                expected = ("dead", None)
            else:
                expected = ("acked", {"value": values.get((result.topic, result.id))})
            if (result.outcome, result.value) != expected:
                self.found("results wrong", f"{result}, not {expected}")
        for entry in self.record.jobs.log if self.record.drained else ():
            for reader in JOB_READERS:
                wanted = reader.keeps_results and reader.topic == entry.topic
                if wanted and (reader.topic, reader.group, entry.id) not in kept:
                    self.found("results wrong", f"{entry.id} of {reader.topic} for {reader.group} has no result")

    def _look_at_expiry(self) -> None:
        entries = {(entry.topic, entry.id): entry for entry in self.record.jobs.log}
        for handling in self.record.handlings:
            entry = entries.get((handling.topic, handling.id)) if handling.topic == FLEETING else None
            if entry is not None and entry.expires is not None:
                late = handling.began - (entry.expires - self.record.jobs.clock)
                if late > TOO_LATE * self.record.crowded + self._held_up(handling, late):
                    self.found("handled too late", f"{handling}, {late:.3f} s after it had expired")

    def _held_up(self, handling: Handling, late: float) -> float:
        """Return for how long faults may have kept a process from beginning what it was about to, or from reading how
        long that was still valid."""
        faults = self.explanations.harmful(handling.began - late - LEASE_DURATION, handling.began)
        return sum(fault.ended - fault.began for fault in faults if fault.touches(handling.process))


def expected_end(task: Enqueued) -> TaskEnd:
    """Return how a task has to end."""
    errors = [WANTED] * TASK_ERRORS[task.kind]
    return (
        TaskEnd("FAILED", None, errors) if task.kind == "fail" else TaskEnd("SUCCESSFUL", {"sum": task.total}, errors)
    )


def expired_early(entry: LogEntry | None, at: float) -> bool:
    """Tell whether a message was dead-lettered as expired before it had expired."""
    return entry is None or entry.expires is None or at < entry.expires


def figures(record: Record) -> dict[str, object]:
    """Return how much of each kind was checked."""
    jobs = record.jobs
    acts = Counter(str(offer.told) for offer in jobs.offers if not offer.back)
    told = {"True": "cancelled", "False": "too late to cancel", "None": "in doubt"}
    entered = Counter(entry.topic for entry in jobs.log)
    ticks = by_schedule(jobs)
    delays = [entry.entered - due for one in ticks.values() for due, entry in one.items()]
    missed = sum(
        len(list(left_out(SCHEDULES[name], ticks[name], until)))
        for name, (until, _) in jobs.ticks_until.items()
        if ticks[name]
    )
    return {
        "ticks published": entered[TICKS],
        "ticks left out while no process attended": missed,
        "longest delay of a tick (s)": round(max(delays, default=0.0), 1),
        "acts on names": {told.get(name, name): count for name, count in sorted(acts.items())},
        "named messages in the log": entered[NAMED],
        "results of handlers": len(jobs.results),
        "tasks ended": dict(sorted(Counter(end.status for end in jobs.ends.values()).items())),
        **batches.figures(record),
        **calls.figures(record),
        **limits.figures(record),
        **filters.figures(record),
        "messages that could expire": entered[FLEETING],
        "expired": sum(each.error == EXPIRED for each in record.dead),
    }
