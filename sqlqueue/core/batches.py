"""What goes into a batch: one at a time for a stream, chosen by place, not by turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlqueue.core.lanes import HELD, READY, Entry, Lane


def choose_again(loaded: Iterable[Entry]) -> list[Entry]:
    """Return one message that has failed before: these come one by one, so that a bad message is found, and its
    neighbours are not charged for it."""
    for entry in loaded:
        if not entry.untried and (entry.lane is None or entry.lane.head is entry):
            return [entry]
    return []


def choose_untried(loaded: Iterable[Entry], most: int) -> list[Entry]:
    """Return messages that have only waited (for another, or because they were postponed), chosen as fresh ones are."""
    chosen: list[Entry] = []
    taken: dict[Lane, int] = {}
    for entry in sorted(loaded):
        if entry.untried and len(chosen) < most and _follows(entry, taken):
            chosen.append(entry)
    return chosen


def choose_fresh(entries: Iterable[Entry], most: int, bound: int | None) -> list[Entry]:
    """Return ready messages of lanes whose earlier ones are all chosen too, at most up to `bound`."""
    chosen: list[Entry] = []
    taken: dict[Lane, int] = {}
    for entry in entries:
        if len(chosen) >= most or (bound is not None and entry.offset > bound):
            break
        if entry.state == READY and not entry.row and _follows(entry, taken):
            chosen.append(entry)
    return chosen


def would_move_to(chosen: Sequence[Entry], offsets: Sequence[int], final: int) -> int | None:
    """Return where the position may move when all of these are acked: they follow it without a gap, up to F."""
    follows = len(offsets) >= len(chosen) and all(e.offset == o and not e.row for e, o in zip(chosen, offsets))
    return chosen[-1].offset if follows and chosen[-1].offset <= final else None


def enough(loaded: Iterable[Entry], limit: int) -> bool:
    """Tell whether so many loaded messages can be handed out. What stands behind a message that failed again does not
    count: nothing of it can be handed out before that one, which is among the due."""
    return sum(entry.lane is None or entry.lane.items[0].state != HELD for entry in loaded) >= limit


def _follows(entry: Entry, taken: dict[Lane, int]) -> bool:
    """Tell whether all earlier messages of an entry's lane are chosen; then count it among them."""
    lane = entry.lane
    if lane is None:
        return True
    before = taken.get(lane, 0)
    if lane.busy or before >= len(lane.items) or lane.items[before] is not entry or not lane.reaches(entry):
        return False
    taken[lane] = before + 1
    return True
