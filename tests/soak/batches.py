"""Whether batches ended as their members did, and published what belongs to that: once, and not before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.soak.job_records import LogEntry
from tests.soak.records import Record
from tests.soak.workload import CALLED, JOB_READERS, MEMBERS

TOO_EARLY = 1.0  # seconds by which the clocks of the history and of the database may differ
GROUPS = [reader.group for reader in JOB_READERS if reader.topic == MEMBERS]


def wrong_batches(record: Record) -> Iterator[str]:
    """Yield what is wrong with batches, in a run that was drained."""
    members: dict[str, list[LogEntry]] = defaultdict(list)
    called: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in record.jobs.log:
        if entry.topic == MEMBERS:
            members[entry.payload["batch"]].append(entry)
        elif entry.topic == CALLED:
            called[entry.payload["batch"]][entry.payload["when"]].append(entry.entered - record.jobs.clock)
    dead = {(each.group, each.id) for each in record.dead if each.topic == MEMBERS}
    settled = {(each.group, each.id): each.at - record.jobs.clock for each in record.dead if each.topic == MEMBERS}
    for handling in record.handlings:
        if handling.topic == MEMBERS and handling.succeeded:
            settled.setdefault((handling.group, handling.id), handling.until)
    for name, told in record.jobs.batches.items():
        end, expected = record.jobs.batch_ends.get(name), {(group, one.id) for group in GROUPS for one in members[name]}
        if end is None:
            if told or expected or called[name]:
                yield f"{name} is not there, with {len(expected)} members and {dict(called[name])}"
            continue
        failed = len(expected & dead)
        found = (end.members * len(GROUPS), end.acked, end.dead)
        if found != (len(expected), len(expected) - failed, failed):
            yield f"{name} counts {found}, and {len(expected)} were settled, {failed} of them dead letters"
        if end.state == "running" or (told is not None and told != (end.state == "finished")):
            yield f"{name} is {end.state}, and was {'filled' if told else 'given up' if told is False else 'in doubt'}"
        callbacks = {"failure"} if failed else set[str]()
        if end.state == "finished":
            callbacks |= {"finish"} if failed else {"finish", "success"}
        counts = {when: len(times) for when, times in called[name].items()}
        if counts != dict.fromkeys(callbacks, 1) and not (end.state == "cancelled" and counts == {}):
            yield f"{name} is {end.state} with {failed} dead letters, and has called {counts}"
        last = max((settled[each] for each in expected if each in settled), default=0.0)
        if any(at < last - TOO_EARLY for at in called[name]["finish"]):
            yield f"{name} was finished {last - min(called[name]['finish']):.3f} s before its last member"


def figures(record: Record) -> dict[str, object]:
    """Return how much was checked."""
    return {
        "batches": dict(sorted(Counter(end.state for end in record.jobs.batch_ends.values()).items())),
        "members of batches": sum(entry.topic == MEMBERS for entry in record.jobs.log),
    }
