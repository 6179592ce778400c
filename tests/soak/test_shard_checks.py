"""The checks of topics whose keys go from shard to shard find what was planted into a history, and nothing in those
that are sound. "k" is the key of all: it is on shard a, and goes over to b; both have one partition in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sqlqueue.core.epochs import Epoch
from tests.soak import epochs
from tests.soak.history import Line
from tests.soak.places import SHARDS, offset_at, partition_at, shard_at
from tests.soak.progress import BOUND
from tests.soak.records import Change, Fault, Reader
from tests.soak.stories import MINUTE, ONE, OTHER, SIMPLE, STRICT, History, found_in

LISTS = (("a",), ("b",))
LATER = partition_at("b", 1)
MOVED, DONE = 10.0, 12.0  # when the key goes over
PLANTED: list[tuple[Callable[[ShardHistory], None], set[str]]] = []
SOUND: list[Callable[[ShardHistory], None]] = []


class ShardHistory(History):
    """A run in which topics go from shard a to b: process ONE serves the one, and OTHER the other."""

    def __init__(self) -> None:
        super().__init__()
        for topic in (SIMPLE, STRICT):
            self.record.spreads[topic] = LISTS
            self.record.epochs[topic] = tuple(
                epoch
                for shard in "ab"
                for epoch in (
                    Epoch(0, partition_at(shard, 0), 1, end=10),
                    Epoch(1, partition_at(shard, 1), 1, shards="a;b"),
                )
            )
            self.record.changes.append(Change(topic, 1, 0, 0, MOVED, DONE))
            self.acquire(ONE, DONE, topic, partition=partition_at("a", 1))
            self.acquire(OTHER, DONE, topic, partition=LATER)
        self.record.until = MINUTE

    def down(self, shard: str, at: float, seconds: float) -> None:
        """A shard is down."""
        victims = frozenset([OTHER if shard == "b" else ONE])
        self.record.faults.append(Fault(f"kill-shard-{shard}", at, at + seconds, victims, shard))

    def first(self, at: float, topic: str = SIMPLE) -> None:
        """The message of shard a is handled."""
        self.publish("first", topic=topic, at=9)
        self.handle("first", at, topic=topic)

    def second(self, at: float, topic: str = SIMPLE, published: float = 11) -> None:
        """That of shard b is."""
        self.publish("second", topic=topic, at=published)
        self.handle("second", at, topic=topic, partition=LATER, by=OTHER)


def planted(*kinds: str) -> Callable[[Callable[[ShardHistory], None]], Callable[[ShardHistory], None]]:
    def keep(story: Callable[[ShardHistory], None]) -> Callable[[ShardHistory], None]:
        PLANTED.append((story, set(kinds)))
        return story

    return keep


def sound(story: Callable[[ShardHistory], None]) -> Callable[[ShardHistory], None]:
    SOUND.append(story)
    return story


@sound
def the_new_shard_begins_behind_the_former(history: ShardHistory) -> None:
    history.first(13)
    history.second(14)


@planted("out of order")
def the_new_shard_begins_although_the_former_has_more_of_the_key(history: ShardHistory) -> None:
    history.first(14)
    history.second(13)


@planted("out of order")
def a_strict_partition_begins_too_early(history: ShardHistory) -> None:
    history.first(14, STRICT)
    history.second(13, STRICT)


@planted("published twice", "unexplained duplicates", "delivered after the ack")
def an_id_is_on_both_shards(history: ShardHistory) -> None:
    history.publish("again", at=9)
    history.handle("again", 13)
    history.handle("again", 14, partition=LATER, by=OTHER, offset=offset_at("b", 1))


@planted("epochs wrong")
def on_the_shard_of_another_key(history: ShardHistory) -> None:
    history.publish("m", at=11)
    history.handle("m", 13, partition=partition_at("a", 1))


@planted("epochs wrong")
def published_on_the_former_shard_behind_the_new_one(history: ShardHistory) -> None:
    history.second(13, published=10)
    history.publish("late", at=20)
    history.handle("late", 21)


@planted("epochs wrong")
def published_on_the_former_shard_although_all_keys_have_gone_over(history: ShardHistory) -> None:
    history.publish("late", at=DONE + 1)
    history.handle("late", DONE + 2)


@planted("lost")
def on_a_shard_that_no_process_reads_any_more(history: ShardHistory) -> None:
    history.second(13)
    history.publish("left", at=20)
    history.record.until = 21


@planted("two owners")
def in_the_process_of_another_shard(history: ShardHistory) -> None:
    history.publish("m", at=11)
    history.handle("m", 13, partition=LATER, by=ONE)


# -- a change is carried on -------------------------------------------------------------------------------------------


def last_until(history: ShardHistory, ended: float) -> None:
    history.record.changes = [replace(change, ended=ended) for change in history.record.changes]


@planted("changes left")
def a_change_that_no_process_carried_on_for_too_long(history: ShardHistory) -> None:
    last_until(history, MOVED + epochs.MOST + 1)


@sound
def a_change_that_waited_for_a_shard(history: ShardHistory) -> None:
    last_until(history, MOVED + epochs.MOST + 8)
    history.down("b", MOVED + 1, 3)


# -- groups walk on ---------------------------------------------------------------------------------------------------


@planted("stood still")
def a_new_shard_that_was_never_begun(history: ShardHistory) -> None:
    history.first(13)
    history.second(13.1 + BOUND + 1)


@sound
def a_new_shard_that_waits_for_the_former(history: ShardHistory) -> None:
    history.publish("first", at=9)
    for number in range(3):
        history.handle("first", 9.2 + 9 * number, "fail", attempt=number + 1)
    history.handle("first", 36, attempt=4)
    history.second(37 + BOUND / 2)


@sound
def a_new_shard_that_waits_for_the_end_of_the_former(history: ShardHistory) -> None:
    last_until(history, 30)
    history.down("b", MOVED, 12)
    history.second(31 + BOUND / 2)


@sound
def a_shard_that_is_down(history: ShardHistory) -> None:
    history.second(13)
    history.down("b", 20, 10)
    history.publish("m", at=19.8)
    history.handle("m", 30 + BOUND / 2, partition=LATER, by=OTHER)


@sound
def a_new_shard_whose_former_one_is_down_before_it_has_let_it_go_on(history: ShardHistory) -> None:
    history.first(13)
    history.down("a", 14, 10)
    history.second(24 + BOUND / 2)


@planted("stood still")
def a_shard_that_is_held_up_by_another_one(history: ShardHistory) -> None:
    history.first(13)
    history.second(14)
    history.down("a", 30, 10)
    history.publish("m", at=30)
    history.handle("m", 31 + BOUND, partition=LATER, by=OTHER)


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
