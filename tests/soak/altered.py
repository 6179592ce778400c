"""What is changed of a topic under fire: how many partitions it has."""

from __future__ import annotations

from typing import NamedTuple

from tests.logs import LOG
from tests.soak.workload import partitions

COUNTS = (1, 2, 3, 4, 6, 8, 9, 12)  # of partitions, of which a topic gets another one each time
EACH = {True: 40, False: 6}  # about how many transactions a change of partitions takes, on MySQL and on PostgreSQL


class Stage(NamedTuple):
    """What a topic has at a time. number: of the epoch; value: as the command's option says it."""

    number: int
    base: int
    partitions: int
    value: str


class UnderWay(NamedTuple):
    """A change of a topic, and what it leads to."""

    topic: str
    later: Stage


class State(NamedTuple):
    """What the tables say: the change that is under way, of whichever topic, and what the one asked for has now."""

    change: UnderWay | None
    newest: Stage


def look(topic: str) -> State:
    """Look at the tables; the database's error is raised."""
    from sqlqueue.database.generations import Block
    from sqlqueue.exceptions import ConfigurationError
    from sqlqueue.log.layout_changes import under_way
    from sqlqueue.log.layouts import epochs

    try:
        # In this order: a node that catches up may not have heard of the change at first.
        last, change = epochs(LOG, topic)[-1], under_way(LOG)
        block = Block(last.number, last.base, last.partitions)
    except ConfigurationError:
        block, change = Block(0, 0, partitions(topic)), None
    later = None if change is None else UnderWay(change.topic, _stage(*change.later))
    return State(later, _stage(*block))


def transactions() -> int:
    """Return about how many transactions of a change a process can be harmed in."""

    known = LOG.dialect
    return EACH[known.slotted] if known.gated else 1


def _stage(epoch: int, base: int, count: int) -> Stage:
    return Stage(epoch, base, count, str(count))
