"""Whether groups with a filter were given what matches, and nothing else, and the rest was counted.

That what matches was handled, and once, the checker looks at as for any message.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.soak.explanations import Explanations
from tests.soak.job_records import LogEntry
from tests.soak.records import Record
from tests.soak.workload import JOB_READERS, UNSERVED, Reader

SETTLED_WITHIN = 4.0  # seconds after it was published, on a machine of its own and without a fault
AFTERMATH = 6.0  # seconds after a fault, beside those in which a partition is unserved
FILTERED = [reader for reader in JOB_READERS if reader.where is not None]


def wrong_filters(record: Record, explanations: Explanations) -> Iterator[str]:
    """Yield what is wrong with what filters have left out, or let pass. A process that is killed right after its settle
    counts nothing; nothing is counted twice."""
    for reader in FILTERED:
        left_out = left_out_of(record, reader)
        ids = {entry.id for entry in left_out}
        for handling in record.handlings:
            if (handling.topic, handling.group) == (reader.topic, reader.group) and handling.id in ids:
                yield f"{handling}, which its filter leaves out"
        counted = record.jobs.filtered[reader.topic, reader.group]
        least = sum(not may_be_uncounted(entry, record, explanations) for entry in left_out) if record.drained else 0
        if not least <= counted <= len(left_out):
            yield f"{reader.group} has left out {least} to {len(left_out)} messages, and {counted} were counted"


def may_be_uncounted(entry: LogEntry, record: Record, explanations: Explanations) -> bool:
    """Tell whether a fault may have killed a process between the settle of a message and its announcement."""
    at = entry.entered - record.jobs.clock
    return bool(explanations.harmful(at - UNSERVED - AFTERMATH, at + SETTLED_WITHIN * record.crowded))


def left_out_of(record: Record, reader: Reader) -> list[LogEntry]:
    """Return the messages that are for a group, and do not match its filter."""
    of_group = (entry for entry in record.jobs.log if entry.topic == reader.topic and entry.group in ("", reader.group))
    return [entry for entry in of_group if not reader.wants(entry.payload)]


def figures(record: Record) -> dict[str, object]:
    """Return how much was checked."""
    left_out = sum(len(left_out_of(record, reader)) for reader in FILTERED)
    return {
        "messages left out by filters": left_out,
        "of them counted": sum(record.jobs.filtered[reader.topic, reader.group] for reader in FILTERED),
    }
