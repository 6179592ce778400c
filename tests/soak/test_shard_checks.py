"""The checks of topics on several shards find what was planted into a history, and nothing in those that are sound.
"k", the key of all, belongs on shard a."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqlqueue.core.epochs import Epoch
from sqlqueue.core.shards import shard_of
from tests.soak.history import Line
from tests.soak.places import SHARDS, offset_at, partition_at, shard_at
from tests.soak.progress import BOUND
from tests.soak.records import Fault, Reader
from tests.soak.stories import MINUTE, ONE, OTHER, SIMPLE, STRICT, History, found_in

SHARDS_OF_TOPICS = ("a", "b")
OTHER_SHARD = partition_at("b", 0)
OTHERS_KEY = next(str(n) for n in range(99) if shard_of(str(n), SHARDS_OF_TOPICS) == "b")
PLANTED: list[tuple[Callable[[ShardHistory], None], set[str]]] = []
SOUND: list[Callable[[ShardHistory], None]] = []


class ShardHistory(History):
    """A run with topics on the shards a and b: process ONE serves the one, and OTHER the other."""

    def __init__(self) -> None:
        super().__init__()
        for topic in (SIMPLE, STRICT):
            self.record.shards[topic] = SHARDS_OF_TOPICS
            self.record.epochs[topic] = tuple(Epoch(0, partition_at(shard, 0), 1) for shard in "ab")
            self.acquire(OTHER, 0.0, topic, partition=OTHER_SHARD)
        self.record.until = MINUTE

    def down(self, shard: str, at: float, seconds: float) -> None:
        """A shard is down."""
        victims = frozenset([OTHER if shard == "b" else ONE])
        self.record.faults.append(Fault(f"kill-shard-{shard}", at, at + seconds, victims, shard))

    def on_other(self, id: str, published: float, handled: float, by: int = OTHER) -> None:
        """A message of shard b is published, and handled."""
        self.publish(id, key=OTHERS_KEY, at=published)
        self.handle(id, handled, partition=OTHER_SHARD, by=by)


def planted(*kinds: str) -> Callable[[Callable[[ShardHistory], None]], Callable[[ShardHistory], None]]:
    def keep(story: Callable[[ShardHistory], None]) -> Callable[[ShardHistory], None]:
        PLANTED.append((story, set(kinds)))
        return story

    return keep


def sound(story: Callable[[ShardHistory], None]) -> Callable[[ShardHistory], None]:
    SOUND.append(story)
    return story


@sound
def each_key_on_its_shard(history: ShardHistory) -> None:
    history.publish("m", at=9)
    history.handle("m", 9.5)
    history.on_other("n", 9, 9.5)


@planted("published twice", "unexplained duplicates", "delivered after the ack")
def an_id_is_on_both_shards(history: ShardHistory) -> None:
    history.publish("again", at=9)
    history.handle("again", 10)
    history.handle("again", 11, partition=OTHER_SHARD, by=OTHER, offset=offset_at("b", 1))


@planted("epochs wrong")
def on_the_shard_of_another_key(history: ShardHistory) -> None:
    history.publish("m", at=11)
    history.handle("m", 12, partition=OTHER_SHARD, by=OTHER)


@planted("two owners")
def in_the_process_of_another_shard(history: ShardHistory) -> None:
    history.on_other("m", 11, 12, by=ONE)


@sound
def a_shard_that_is_down(history: ShardHistory) -> None:
    history.down("b", 20, 10)
    history.on_other("m", 19.8, 30 + BOUND / 2)


@planted("stood still")
def a_shard_that_is_held_up_by_another_one(history: ShardHistory) -> None:
    history.down("a", 30, 10)
    history.on_other("m", 30, 31 + BOUND)


@sound
def a_shard_whose_message_was_relayed_by_one_that_is_down(history: ShardHistory) -> None:
    a_shard_that_is_held_up_by_another_one(history)
    history.record.transactions[-1].relayed_by = "a"


# -- how it is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("story", "kinds"), PLANTED, ids=[story.__name__ for story, _ in PLANTED])
def test_what_was_planted_is_found_and_nothing_else(story: Callable[[ShardHistory], None], kinds: set[str]) -> None:
    history = ShardHistory()
    story(history)
    assert set(found_in(history)) == kinds, history.check().problems


@pytest.mark.parametrize("story", SOUND, ids=[story.__name__ for story in SOUND])
def test_what_is_sound_is_not_reported(story: Callable[[ShardHistory], None]) -> None:
    history = ShardHistory()
    story(history)
    assert not found_in(history), history.check().problems


def test_partitions_and_offsets_of_a_process_are_those_of_its_shard() -> None:
    lines = [
        Line("process", 1.0, [7, "consumer"], 0),
        Line("serves", 2.0, ["c"], 0),
        Line("acquired", 3.0, ["t", "g", [0, 5], "s"], 0),
        Line("begin", 4.0, ["t", "g", 5, 9, "m", 1], 0),
        Line("end", 5.0, ["t", "g", 9, 1, "ok"], 0),
        Line("settled", 6.0, ["t", "g", 9, 1, "acked"], 0),
        Line("dead", 6.0, ["t", "g", 8, 4], 0),
        Line("process", 1.0, [8, "consumer"], 1),
        Line("serves", 2.0, ["a"], 1),
        Line("fault", 9.0, ["kill-shard-c", 8.0, "c"], 2),
    ]
    record = Reader().read(lines)
    (handling,) = record.handlings
    assert (handling.partition, handling.offset, handling.outcome) == (partition_at("c", 5), offset_at("c", 9), "ok")
    assert [one[-1] for one in record.acquired] == [partition_at("c", 0), partition_at("c", 5)]
    assert record.settled[0][4] == handling.offset
    assert [*record.dead_lettered] == [("t", "g", offset_at("c", 8))]
    assert record.faults == [Fault("kill-shard-c", 8.0, 9.0, frozenset([0]), "c")]
    assert {shard_at(partition_at(shard, 999)) for shard in SHARDS} == {*SHARDS}
    assert partition_at("", 5) == partition_at("a", 5) == 5


def test_who_relays_is_read() -> None:
    record = Reader().read(
        [Line("publish", 1.0, [3, [["t", "k", "m"]]], 0), Line("relays", 1.0, [3, "b"], 0), Line("told", 2.0, [3], 0)]
    )
    assert [each.relayed_by for each in record.transactions] == ["b"]
