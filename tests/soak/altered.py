"""What can be changed of a topic under fire: how many partitions it has or, with shards, which shards it is on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.soak.workload import ALTERED, partitions

COUNTS = (1, 2, 3, 4, 6, 8, 9, 12)  # of partitions, of which a topic gets another one each time
LISTS = ("a", "b", "c", "a,b", "a,c", "b,c", "a,b,c")  # of shards, likewise
EACH = {True: 40, False: 6}  # about how many transactions a change of partitions takes, on MySQL and on PostgreSQL


class Stage(NamedTuple):
    """What a topic has at a time. number: of the epoch, or the version of the list of shards; value: as the command's
    option says it."""

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


class Altered(ABC):
    """One or the other of them. topics: how often each is changed, beside the others."""

    option: str
    values: Sequence[str]
    topics: Mapping[str, int]

    @abstractmethod
    def look(self, topic: str) -> State:
        """Look at the tables; the database's error is raised."""

    @abstractmethod
    def transactions(self) -> int:
        """Return about how many transactions of a change a process can be harmed in."""


class Partitions(Altered):
    """Their number. A topic that is not there yet is made by the command."""

    option, values, topics = "--partitions", [str(count) for count in COUNTS], ALTERED

    def look(self, topic: str) -> State:
        from sqlqueue.database.generations import Block
        from sqlqueue.exceptions import ConfigurationError
        from sqlqueue.log.change_state import under_way
        from sqlqueue.operations.layout_changes import open_block

        try:
            # In this order: a node that catches up may not have heard of the change at first.
            block, change = open_block("default", topic), under_way("default")
        except ConfigurationError:
            block, change = Block(0, 0, partitions(topic)), None
        later = None if change is None else UnderWay(change.topic, _stage(*change.later))
        return State(later, _stage(*block))

    def transactions(self) -> int:
        from sqlqueue.database.statements import dialect

        known = dialect("default")
        return EACH[known.slotted] if known.gated else 1


class Shards(Altered):
    """Which ones. DATABASE's shard, which decides, is that of the default alias."""

    option, values = "--shards", LISTS

    def __init__(self, topics: Mapping[str, Sequence[str]]) -> None:
        """topics: and the shards that each is on at first."""
        self.topics, self._first = dict.fromkeys(topics, 1), topics

    def look(self, topic: str) -> State:
        from sqlqueue.core.shards import spread_from
        from sqlqueue.models import Topic

        spreads = {name: spread_from(text) for name, text in Topic.objects.values_list("name", "shards")}
        later = next(
            (
                UnderWay(name, _spread_stage(len(spread.lists), spread.coming))
                for name, spread in spreads.items()
                if spread.coming is not None
            ),
            None,
        )
        lists = spreads[topic].lists if topic in spreads else (self._first[topic],)
        return State(later, _spread_stage(len(lists) - 1, lists[-1]))

    def transactions(self) -> int:
        return EACH[True] * len(LISTS[-1].split(","))


def _stage(epoch: int, base: int, count: int) -> Stage:
    return Stage(epoch, base, count, str(count))


def _spread_stage(version: int, shards: Sequence[str]) -> Stage:
    return Stage(version, 0, 0, ",".join(shards))
