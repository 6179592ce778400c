"""Batches whose members are on several shards: each member is counted once, and the batch ends once."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue import (
    Batch,
    ConfigurationError,
    Delivery,
    InvalidMessage,
    NewMessage,
    Reject,
    cancel,
    cancel_batch,
    get_batch,
    publish,
)
from sqlqueue.consumers.background.batches import BatchTask
from sqlqueue.core.shards import shard_of
from sqlqueue.log import batch_collect, batch_ends, batch_standing, relay_moves
from sqlqueue.log.groups import remove
from sqlqueue.models import Batch as BatchRow
from sqlqueue.models import BatchGroup, BatchPart, BatchProgress, Message, RelayedMessage, ScheduledMessage
from sqlqueue.operations import relayed
from sqlqueue.operations.batches import retry_failed
from sqlqueue.operations.move import move
from sqlqueue.testing import drain
from tests.batches.following import CALLED, figures, register, standing
from tests.consuming import Consuming
from tests.shards.aliases import A, B, b_is_down, further, url_of

pytestmark = pytest.mark.long("mariadb", "mysql", "postgresql")

KINDS = pytest.mark.parametrize("kind", ["sync", "atomic", "async", "batch", "atomic batch"])
KEYS = [f"key-{number}" for number in range(40)]
OF_A, OF_B = ([key for key in KEYS if shard_of(key, ["a", "b"]) == shard] for shard in ("a", "b"))
CALLBACKS = {f"on_{when}": (CALLED, when) for when in ("finish", "success", "failure")}


@pytest.fixture
def called(consuming: Consuming, shards: dict[str, Any], settings: Any) -> list[Any]:
    """The payloads of the callbacks that were delivered, in their order; two shards."""
    settings.SQLQUEUE = shards
    found: list[Any] = []
    consuming.consumer(CALLED, lambda delivery: found.append(delivery.payload))
    return found


def on_each_shard(batch: str, topic: str = "t") -> list[int]:
    """Return how many members of a batch are in the log of each shard."""
    rows = [Message.objects.using(alias).filter(topic=topic, headers__has_key="sqlqueue-batch") for alias in (A, B)]
    return [sum(message.headers["sqlqueue-batch"] == batch for message in some) for some in rows]


def parts(alias: str, batch: str) -> int:
    return sum(BatchPart.objects.using(alias).filter(batch=batch, part__gte=0).values_list("added", flat=True))


def move_all() -> None:
    while relay_moves.move(A, "b").more:
        pass


@KINDS
def test_members_on_both_shards_are_counted_once(consuming: Consuming, called: list[Any], kind: str) -> None:
    register(consuming, kind, lambda delivery: None)
    with Batch(**CALLBACKS) as batch:
        for key in KEYS[:10]:
            batch.publish("t", key, key=key)
        batch.publish_many("t", [NewMessage(key, key=key) for key in KEYS[10:]])
        batch.publish_many("t", ["keyless", "too"])
    before = on_each_shard(batch.id)
    assert sum(before) == 42
    assert min(before) > 5
    assert figures(batch.id)[0] == 42
    drain()
    assert figures(batch.id) == (42, 42, 0)
    assert standing(batch.id).state == "succeeded"
    assert sorted(called) == ["finish", "success"]


def test_in_a_transaction_the_members_of_other_shards_are_relayed(consuming: Consuming, called: list[Any]) -> None:
    register(consuming, "sync", lambda delivery: None)
    with transaction.atomic(using=A):
        with Batch(**CALLBACKS) as batch:
            batch.publish_many("t", [NewMessage(key, key=key) for key in KEYS])
        transaction.set_rollback(True, using=A)
    assert get_batch(batch.id) is None
    assert not RelayedMessage.objects.using(A).exists()
    with transaction.atomic(using=A), Batch(**CALLBACKS) as batch:
        batch.publish("t", 1, key=OF_B[0])
        batch.publish_many("t", [NewMessage(key, key=key) for key in KEYS])
    assert on_each_shard(batch.id) == [len(OF_A), 0]
    assert RelayedMessage.objects.using(A).count() == len(OF_B) + 1
    assert figures(batch.id) == (41, 0, 0)
    batch_ends.sweep(A)
    assert standing(batch.id).state == "running"
    drain()
    assert figures(batch.id) == (41, 41, 0)
    assert sorted(called) == ["finish", "success"]


def test_a_batch_in_a_transaction_on_another_shard_is_refused(called: list[Any]) -> None:
    with transaction.atomic(using=B), pytest.raises(ConfigurationError, match=r"DATABASE's shard, 'a'.*open on 'b'"):
        Batch().__enter__()
    with Batch(**CALLBACKS) as batch, transaction.atomic(using=B):
        batch.publish("t", 1, key=OF_B[0])
        batch.publish("t", 1, key=OF_A[0])  # relayed by b
    assert (parts(A, batch.id), parts(B, batch.id)) == (0, 2)
    assert figures(batch.id) == (2, 0, 0)
    open_at_its_end = transaction.atomic(using=B)
    batch = Batch(**CALLBACKS)
    with pytest.raises(ConfigurationError, match="Let that end inside of the batch's block"), batch:
        open_at_its_end.__enter__()
    open_at_its_end.__exit__(None, None, None)
    assert standing(batch.id).state == "cancelled"


def test_an_iterator_needs_a_topic_of_one_shard(called: list[Any], settings: Any) -> None:
    settings.SQLQUEUE = settings.SQLQUEUE | {"TOPICS": {"t": {}, "one": {"shards": ["b"]}}}
    with Batch() as batch:
        with pytest.raises(InvalidMessage, match="several shards"):
            batch.publish_many("t", iter([1, 2]))
        batch.publish_many("one", iter([1, NewMessage(2, group=None)]))  # type: ignore[arg-type]
    assert on_each_shard(batch.id, "one") == [0, 2]
    assert figures(batch.id) == (2, 0, 0)


@pytest.mark.parametrize("first", [OF_A, OF_B])
def test_a_handler_adds_members_on_its_own_shard_and_on_others(
    consuming: Consuming, called: list[Any], first: list[str]
) -> None:
    def handle(delivery: Delivery) -> None:
        if delivery.payload and delivery.batch:
            for key in KEYS:
                delivery.batch.publish("t", delivery.payload - 1, key=key)
            delivery.batch.publish_many("t", [NewMessage(0, key=key) for key in KEYS])

    register(consuming, "sync", handle)
    with Batch(**CALLBACKS) as batch:
        batch.publish("t", 1, key=first[0])
    drain()
    assert figures(batch.id) == (81, 81, 0)
    assert sorted(called) == ["finish", "success"]


@pytest.mark.parametrize("first", [OF_A, OF_B])
def test_an_atomic_handler_adds_members_of_other_shards_by_the_relay(
    consuming: Consuming, called: list[Any], first: list[str]
) -> None:
    def handle(delivery: Delivery) -> None:
        if delivery.payload and delivery.batch:
            delivery.batch.publish_many("t", [NewMessage(0, key=key) for key in KEYS])
            if delivery.attempt == 1:
                raise ValueError("rolled back with what it has published")

    register(consuming, "atomic", handle, backoff=0.0)
    with Batch(**CALLBACKS) as batch:
        batch.publish("t", 1, key=first[0])
    drain()
    assert figures(batch.id) == (41, 41, 0)
    assert sorted(called) == ["finish", "success"]


@pytest.mark.once
def test_a_shard_that_only_a_handler_of_another_one_publishes_to_is_waited_for(
    consuming: Consuming, called: list[Any], settings: Any, tmp_path: Path
) -> None:
    """Members on b, whose handler publishes to c: DATABASE's shard, a, does not know of c, but b does."""
    three = {name: {"alias": alias} for name, alias in (("a", A), ("b", B), ("c", "queue_c"))}
    with further({"queue_c": url_of("queue_c", tmp_path)}):
        topics = {CALLED: {"shards": ["a"]}, "t": {"shards": ["b"]}, "u": {"shards": ["c"]}}
        settings.SQLQUEUE = settings.SQLQUEUE | {"SHARDS": three, "TOPICS": topics}

        def handle(delivery: Delivery) -> None:
            assert delivery.batch
            delivery.batch.publish("u", 1)

        register(consuming, "sync", handle)
        with Batch(**CALLBACKS) as batch:
            batch.publish("t", 1)
        drain(topics=["t", CALLED])
        assert not BatchPart.objects.using(A).filter(batch=batch.id, shard="c").exists()
        assert figures(batch.id) == (2, 1, 0)
        assert called == []
        consuming.consumer("u", lambda delivery: None)
        drain()
        assert standing(batch.id).state == "succeeded"


@pytest.mark.parametrize("key", [OF_A[0], OF_B[0]])
def test_a_relayed_member_whose_id_is_taken_is_none(consuming: Consuming, called: list[Any], key: str) -> None:
    register(consuming, "sync", lambda delivery: None)
    publish("t", "first", key=key, id="taken")
    with transaction.atomic(using=A), Batch(**CALLBACKS) as batch:
        batch.publish("t", "again", key=key, id="taken")
        batch.publish("t", "other", key=key, id="other")
        batch.publish("t", "and again", key=key, id="other")
    drain()
    assert figures(batch.id) == (1, 1, 0)
    assert sorted(called) == ["finish", "success"]


DISCARDED: dict[str, Callable[[], object]] = {
    "cancel": lambda: cancel("t", id="m0", key=OF_B[0]),
    "discard": lambda: relayed.discard(A, RelayedMessage.objects.using(A).values_list("pk", flat=True)[:1]),
}


@pytest.mark.parametrize("how", DISCARDED)
def test_a_relayed_member_that_is_taken_back_counts_no_more(consuming: Consuming, called: list[Any], how: str) -> None:
    register(consuming, "sync", lambda delivery: None)
    with transaction.atomic(using=A), Batch(**CALLBACKS) as batch:
        for number in range(3):
            batch.publish("t", number, key=OF_B[0], id=f"m{number}")
    assert DISCARDED[how]()
    assert figures(batch.id) == (2, 0, 0)
    drain()
    assert figures(batch.id) == (2, 2, 0)
    assert sorted(called) == ["finish", "success"]


def test_one_that_arrives_while_it_is_taken_back_counts_once(
    consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(consuming, "sync", lambda delivery: None)
    with transaction.atomic(using=A), Batch(**CALLBACKS) as batch:
        batch.publish("t", 1, key=OF_B[0], id="m")
    with monkeypatch.context() as patch:
        patch.setattr(relay_moves, "delete", lambda *values: None)  # killed before it deletes
        relay_moves.move(A, "b")
    assert not cancel("t", id="m", key=OF_B[0])
    assert figures(batch.id) == (1, 0, 0)
    drain()
    assert figures(batch.id) == (1, 1, 0)


def test_a_relayed_member_that_is_corrected_stays_one(consuming: Consuming, called: list[Any]) -> None:
    register(consuming, "sync", lambda delivery: None)
    consuming.consumer("u", lambda delivery: None)
    with transaction.atomic(using=A), Batch(**CALLBACKS) as batch:
        batch.publish("t", 1, key=OF_B[0])
        batch.publish("t", 1, key=OF_B[0], headers={"n": 1})
    first, second = RelayedMessage.objects.using(A).order_by("pk").values_list("pk", flat=True)
    relayed.edit(A, first, topic="u", headers={"x": 1})
    relayed.edit(A, second, headers=None)
    assert figures(batch.id) == (2, 0, 0)
    move_all()
    assert (on_each_shard(batch.id), on_each_shard(batch.id, "u")) == ([0, 1], [0, 1])
    drain()
    assert figures(batch.id) == (2, 2, 0)
    assert sorted(called) == ["finish", "success"]


def test_a_scheduled_member_that_belongs_elsewhere_is_counted_where_it_goes(
    consuming: Consuming, called: list[Any]
) -> None:
    register(consuming, "sync", lambda delivery: None)
    with Batch(**CALLBACKS) as batch:
        batch.publish("t", 1, key=OF_A[0], delay=60)
    ScheduledMessage.objects.using(A).update(partition_key=OF_B[0], due_at="2020-01-01T00:00:00Z")  # by hand
    drain()
    assert on_each_shard(batch.id) == [0, 1]
    assert figures(batch.id) == (1, 1, 0)
    assert sorted(called) == ["finish", "success"]


def test_what_fails_is_retried_on_its_shard(consuming: Consuming, called: list[Any]) -> None:
    fail = [True]

    def handle(delivery: Delivery) -> None:
        if fail[0]:
            raise Reject("no")

    register(consuming, "sync", handle)
    with Batch(**CALLBACKS) as batch:
        batch.publish_many("t", [NewMessage(key, key=key) for key in KEYS])
    drain()
    assert figures(batch.id) == (40, 0, 40)
    assert sorted(called) == ["failure", "finish"]
    fail[0] = False
    assert retry_failed(batch.id, most=7) == 7
    assert retry_failed(batch.id) == 33
    drain()
    assert figures(batch.id) == (40, 40, 0)
    assert sorted(called) == ["failure", "finish", "success"]


def test_a_cancelled_batch_calls_nothing(consuming: Consuming, called: list[Any]) -> None:
    register(consuming, "sync", lambda delivery: None)
    with Batch(**CALLBACKS) as batch:
        batch.publish_many("t", [NewMessage(key, key=key) for key in KEYS])
    assert cancel_batch(batch.id)
    drain()
    assert (figures(batch.id), called) == ((40, 40, 0), [])


def test_the_steps_of_a_chain_go_to_their_shards(consuming: Consuming, called: list[Any]) -> None:
    seen: list[tuple[int, str]] = []
    register(consuming, "sync", lambda delivery: seen.append((delivery.payload, delivery.shard)))
    step = [[("t", number, key) for key in (OF_A[0], OF_B[0])] for number in (2, 3)]
    with Batch(then=step) as batch:
        batch.publish("t", 1, key=OF_B[0])
    drain()
    assert standing(batch.id).state == "succeeded"
    assert sorted(seen) == [(1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "b")]
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)


def test_a_move_of_a_group_on_another_shard_is_counted(consuming: Consuming, called: list[Any]) -> None:
    register(consuming, "sync", lambda delivery: None)
    with transaction.atomic(using=A), Batch(**CALLBACKS) as batch:
        batch.publish_many("t", [NewMessage(key, key=key) for key in OF_B[:10]])
        batch.publish("t", "later", key=OF_A[0], delay=60)
    drain()
    assert figures(batch.id) == (11, 10, 0)
    move(B, "default", "t", 0)
    assert figures(batch.id) == (11, 0, 0)
    drain()
    assert figures(batch.id) == (11, 10, 0)


@pytest.mark.parametrize("shards_of_topic", [["a", "b"], ["b"]])
def test_a_group_that_is_removed_from_all_shards_is_not_waited_for(
    consuming: Consuming, called: list[Any], settings: Any, shards_of_topic: list[str]
) -> None:
    settings.SQLQUEUE = settings.SQLQUEUE | {"TOPICS": {"t": {"shards": shards_of_topic}, CALLED: {}}}
    register(consuming, "sync", lambda delivery: None)
    with transaction.atomic(using=A), Batch(**CALLBACKS) as batch:
        batch.publish_many("t", [NewMessage(key, key=key, group="gone") for key in KEYS])
        batch.publish("t", 1, key=OF_B[0])
    drain()
    assert figures(batch.id) == (41, 1, 0)
    for alias in (A, B) if "a" in shards_of_topic else (B,):
        remove(alias, "gone", "t")
    batch_ends.sweep(A)
    assert figures(batch.id) == (1, 1, 0)
    assert standing(batch.id).state == "succeeded"


def test_its_counts_are_deleted_on_all_shards_when_its_retention_is_over(
    consuming: Consuming, called: list[Any], settings: Any
) -> None:
    register(consuming, "sync", lambda delivery: None)
    with Batch(**CALLBACKS) as batch:
        batch.publish_many("t", [NewMessage(key, key=key) for key in KEYS])
    drain()
    settings.SQLQUEUE = settings.SQLQUEUE | {"BATCH_RETENTION": 0}
    assert batch_collect.collect(B) == 0
    with b_is_down():
        assert batch_collect.collect(A) == 0
    assert standing(batch.id).state == "succeeded"
    assert batch_collect.collect(A) == 1
    for alias in (A, B):
        for model in (BatchRow, BatchPart, BatchProgress, BatchGroup):
            assert not model._default_manager.using(alias).exists()


def test_without_an_answer_of_a_shard_a_batch_does_not_end(
    consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(consuming, "sync", lambda delivery: None)
    with Batch(**CALLBACKS) as batch:
        batch.publish_many("t", [NewMessage(key, key=key) for key in KEYS])
    with Batch(**CALLBACKS) as only_a:
        only_a.publish("t", 1, key=OF_A[0])
    monkeypatch.setattr("sqlqueue.testing._sweep_batches", lambda alias: None)
    monkeypatch.setattr("sqlqueue.consumers.settler.batch_ends.check_quietly", lambda *values: None)
    drain()
    monkeypatch.undo()
    with b_is_down():
        assert standing(batch.id).unknown_shards == ("b",)
        assert standing(only_a.id).unknown_shards == ()
        batch_ends.sweep(A)
        assert standing(only_a.id).state == "succeeded"
        assert standing(batch.id).state == "running"
    batch_ends.sweep(A)
    assert standing(batch.id).state == "succeeded"


def test_a_process_of_another_shard_does_not_wait_for_databases_to_end(
    called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(alias: str, ids: Any) -> Any:
        assert alias == A
        raise OperationalError("gone")

    monkeypatch.setattr("sqlqueue.consumers.background.batches.check", gone)
    monkeypatch.setattr("sqlqueue.consumers.background.batches.retries.unreachable", lambda *values: True)
    waits = []
    for alias in (A, B):
        task = BatchTask(alias)
        task.look_at(["some"])
        with pytest.raises(OperationalError):
            task.run_once()
        waits.append(not task.idle)
    assert waits == [True, False]


def test_a_publisher_does_not_wait_for_other_shards_at_its_end(called: list[Any]) -> None:
    with CaptureQueriesContext(connections[B]) as asked:
        with Batch() as empty:
            pass
        with Batch() as batch, transaction.atomic(using=A):
            batch.publish("t", 1, key=OF_B[0])
    assert not asked.captured_queries
    assert (standing(empty.id).state, standing(batch.id).state) == ("succeeded", "running")


@pytest.mark.parametrize("relayed", [True, False])
def test_members_that_come_to_a_shard_while_it_is_looked_are_waited_for(
    consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch, relayed: bool
) -> None:
    """The shards are known, then a handler adds the first member of another one, then it is settled itself."""
    register(consuming, "sync", lambda delivery: None)
    with Batch(**CALLBACKS) as batch:
        batch.publish("t", 1, key=OF_A[0])
    spread = batch_standing.spread

    def overtaken(*values: Any) -> Any:
        found = spread(*values)
        monkeypatch.setattr(batch_standing, "spread", spread)
        with transaction.atomic(using=A) if relayed else nullcontext():
            Batch.of_member(batch.id, lambda: None, A).publish("t", 1, key=OF_B[0])
        drain(topics=["t"])
        return found

    monkeypatch.setattr(batch_standing, "spread", overtaken)
    monkeypatch.setattr("sqlqueue.testing._sweep_batches", lambda alias: None)
    monkeypatch.setattr("sqlqueue.consumers.settler.batch_ends.check_quietly", lambda *values: None)
    (found,) = batch_standing.standings(A, [batch.id]).values()
    assert (found.unknown, found.finished) == ({"b"}, False)
