"""What goes into a batch. A partition has one batch at a time, chosen in the order of the offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlqueue.core.partition.ordering import HELD, READY, Entry, OrderingQueue


def choose_loaded(loaded: Iterable[Entry], most: int, tried: bool) -> list[Entry]:
    """Return loaded messages, chosen as fresh ones are. tried: those that have failed before, each of which is handled
    in a call of its own, so that none is charged for another; else those that have only waited (for another, or
    because they were postponed)."""
    chosen: list[Entry] = []
    taken: dict[OrderingQueue, int] = {}
    for entry in sorted(entry for entry in loaded if (entry.count > 0) is tried):
        if len(chosen) < most and _follows(entry, taken):
            chosen.append(entry)
    return chosen


def choose_fresh(entries: Iterable[Entry], most: int, bound: int | None) -> list[Entry]:
    """Return ready messages of queues whose earlier ones are all chosen too, at most up to `bound`."""
    chosen: list[Entry] = []
    taken: dict[OrderingQueue, int] = {}
    for entry in entries:
        if len(chosen) >= most or (bound is not None and entry.offset > bound):
            break
        if entry.state == READY and not entry.row and _follows(entry, taken):
            chosen.append(entry)
    return chosen


def follow_position(chosen: Sequence[Entry], offsets: Sequence[int], final: int) -> bool:
    """Tell whether the position may move past these when they are acked: they follow it without a gap, up to F."""
    follows = len(offsets) >= len(chosen) and all(e.offset == o and not e.row for e, o in zip(chosen, offsets))
    return follows and chosen[-1].offset <= final


def enough(loaded: Iterable[Entry], limit: int) -> bool:
    """Tell whether at least `limit` loaded messages can be dispatched. Those behind a message that failed again do not
    count: they cannot be dispatched before that one, which is among the due rows."""
    return (
        sum(entry.queue is None or not entry.queue.entries or entry.queue.entries[0].state != HELD for entry in loaded)
        >= limit
    )


def _follows(entry: Entry, taken: dict[OrderingQueue, int]) -> bool:
    """Tell whether all earlier messages of an entry's queue are chosen; then count it among them."""
    queue = entry.queue
    if queue is None:
        return True
    before = taken.get(queue, 0)
    if queue.busy or before >= len(queue.entries) or queue.entries[before] is not entry or not queue.reaches(entry):
        return False
    taken[queue] = before + 1
    return True
