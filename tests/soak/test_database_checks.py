"""The checks of topics on several databases find what was planted into a history, and nothing in those that are sound.
A message belongs on database a, unless it says otherwise."""

from __future__ import annotations

from typing import Any

from sqlqueue.core.keys import Epoch, database_of
from tests.soak.history import Line
from tests.soak.places import ALIASES, database_at, offset_at, partition_at
from tests.soak.progress import BOUND
from tests.soak.records import Fault, Reader
from tests.soak.stories import MINUTE, ONE, OTHER, SIMPLE, STRICT, History, Stories

BOTH = A, B = ("default", "queue_b")
ON_OTHER = partition_at(B, 0)
KEY = next(str(n) for n in range(99) if database_of(str(n), BOTH) == A)
OTHERS_KEY = next(str(n) for n in range(99) if database_of(str(n), BOTH) == B)


class DatabaseHistory(History):
    """A run with topics on the databases a and b: process ONE serves the one, and OTHER the other."""

    def __init__(self) -> None:
        super().__init__()
        for topic in (SIMPLE, STRICT):
            self.record.databases[topic] = BOTH
            self.record.epochs[topic] = tuple(Epoch(0, partition_at(database, 0), 1) for database in BOTH)
            self.acquire(OTHER, 0.0, topic, partition=ON_OTHER)
        self.record.until = MINUTE

    def publish(self, *ids: str, key: str = KEY, **options: Any) -> None:
        super().publish(*ids, key=key, **options)

    def down(self, database: str, at: float, seconds: float) -> None:
        """A database is down."""
        victims = frozenset([OTHER if database == B else ONE])
        self.record.faults.append(Fault(f"kill-database-{database}", at, at + seconds, victims, database))

    def on_other(self, id: str, published: float, handled: float, by: int = OTHER) -> None:
        """A message of database b is published, and handled."""
        self.publish(id, key=OTHERS_KEY, at=published)
        self.handle(id, handled, partition=ON_OTHER, by=by)


STORIES = Stories(DatabaseHistory)
planted, sound = STORIES.planted, STORIES.sound


@sound
def each_key_on_its_database(history: DatabaseHistory) -> None:
    history.publish("m", at=9)
    history.handle("m", 9.5)
    history.on_other("n", 9, 9.5)


@planted("published twice", "unexplained duplicates", "delivered after the ack", "epochs wrong")
def an_id_is_on_both_databases(history: DatabaseHistory) -> None:
    history.publish("again", at=9)
    history.handle("again", 10)
    history.handle("again", 11, partition=ON_OTHER, by=OTHER, offset=offset_at(B, 1))


@planted("epochs wrong")
def on_the_database_of_another_key(history: DatabaseHistory) -> None:
    history.publish("m", at=11)
    history.handle("m", 12, partition=ON_OTHER, by=OTHER)


@planted("two owners")
def in_the_process_of_another_database(history: DatabaseHistory) -> None:
    history.on_other("m", 11, 12, by=ONE)


@sound
def a_database_that_is_down(history: DatabaseHistory) -> None:
    history.down(B, 20, 10)
    history.on_other("m", 19.8, 30 + BOUND / 2)


@planted("stood still")
def a_database_that_is_held_up_by_another_one(history: DatabaseHistory) -> None:
    history.down(A, 30, 10)
    history.on_other("m", 30, 31 + BOUND)


@sound
def a_database_whose_message_was_relayed_by_one_that_is_down(history: DatabaseHistory) -> None:
    a_database_that_is_held_up_by_another_one(history)
    history.record.transactions[-1].relayed_by = A


# -- how it is read ---------------------------------------------------------------------------------------------------


test_what_was_planted_is_found_and_nothing_else = STORIES.test()


def test_partitions_and_offsets_of_a_process_are_those_of_its_database() -> None:
    lines = [
        Line("process", 1.0, [7, "consumer"], 0),
        Line("serves", 2.0, ["queue_c"], 0),
        Line("acquired", 3.0, ["t", "g", [0, 5], "s"], 0),
        Line("begin", 4.0, ["t", "g", 5, 9, "m", 1], 0),
        Line("end", 5.0, ["t", "g", 9, 1, "ok"], 0),
        Line("settled", 6.0, ["t", "g", 9, 1, "acked"], 0),
        Line("dead", 6.0, ["t", "g", 8, 4], 0),
        Line("process", 1.0, [8, "consumer"], 1),
        Line("serves", 2.0, [A], 1),
        Line("fault", 9.0, ["kill-database-queue_c", 8.0, "queue_c"], 2),
    ]
    record = Reader().read(lines)
    (handling,) = record.handlings
    assert (handling.partition, handling.offset, handling.outcome) == (
        partition_at("queue_c", 5),
        offset_at("queue_c", 9),
        "ok",
    )
    assert [one[-1] for one in record.acquired] == [partition_at("queue_c", 0), partition_at("queue_c", 5)]
    assert record.settled[0][4] == handling.offset
    assert [*record.dead_lettered] == [("t", "g", offset_at("queue_c", 8))]
    assert record.faults == [Fault("kill-database-queue_c", 8.0, 9.0, frozenset([0]), "queue_c")]
    assert {database_at(partition_at(database, 999)) for database in ALIASES} == {*ALIASES}
    assert partition_at("", 5) == partition_at(A, 5) == 5


def test_who_relays_is_read() -> None:
    record = Reader().read(
        [Line("publish", 1.0, [3, [["t", "k", "m"]]], 0), Line("relays", 1.0, [3, B], 0), Line("told", 2.0, [3], 0)]
    )
    assert [each.relayed_by for each in record.transactions] == [B]
