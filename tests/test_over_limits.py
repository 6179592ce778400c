"""More than goes at once goes all the same: each test has more to do than one statement, transaction or pass takes."""

import json
from itertools import product
from pathlib import Path

import pytest

from sqlqueue import NewMessage, publish, publish_many, testing
from sqlqueue.database import sizes
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.sizes import delete_all
from sqlqueue.leases import acquire
from sqlqueue.log import collect, groups, retention, schedule
from sqlqueue.management.commands import queuedlq, queuepublish
from sqlqueue.models import DeliveryState, Message, PartitionLease, Request, ScheduledMessage
from sqlqueue.models.request import DONE
from sqlqueue.operations import replay, replay_requests, requests, reschedule
from tests.consuming import QUICK, Consuming
from tests.factories import DeadLetterFactory, DeliveryStateFactory, ScheduledMessageFactory
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def one_partition(settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "RETENTION": 0}


def add_dead_letters(count: int) -> None:
    """Put so many dead letters of topic t and group g into the log."""
    groups.register(LOG, "g", "t")
    DeadLetterFactory.insert(count)


def letters() -> int:
    return Message.objects.dead_letters("g", "t").count()


def offsets() -> list[int]:
    return list(Message.objects.filter(topic="t").values_list("offset", flat=True))


def test_dead_letters_are_replayed_past_one_transaction() -> None:
    count = 2 * replay.AT_ONCE + 1
    add_dead_letters(count)
    assert replay.replay("t") == count
    assert (letters(), Message.objects.filter(topic="t").count()) == (0, count)


def test_a_replay_goes_past_one_step() -> None:
    count = 2 * requests.AT_ONCE + 1
    add_dead_letters(count)
    replay_requests.request_replay(LOG, "t")
    while requests.carry_out(LOG):
        pass
    order = Request.objects.get()
    assert (order.state, order.done, letters()) == (DONE, count, 0)


def test_dead_letters_are_discarded_past_one_statement() -> None:
    add_dead_letters(2 * replay.DISCARDED_AT_ONCE + 1)
    assert replay.discard("t") == 2 * replay.DISCARDED_AT_ONCE + 1
    assert letters() == 0


def test_the_command_discards_past_one_call() -> None:
    count = 2 * queuedlq.DISCARDED_AT_ONCE + 1
    add_dead_letters(count)
    assert run("queuedlq", "discard", "t", "--no-input").out.endswith(f"\nDeleted {count} dead letters.\n")


def test_messages_are_republished_past_one_transaction() -> None:
    count = 2 * reschedule.AT_ONCE + 1
    publish_many("t", range(count))
    assert reschedule.republish("t", "g", offsets()) == count
    assert len(offsets()) == 2 * count


def test_messages_are_acknowledged_past_one_transaction(consuming: Consuming) -> None:
    groups.register(LOG, "g", "t")
    count = 2 * reschedule.AT_ONCE + 1
    publish_many("t", range(count))
    assert reschedule.acknowledge(LOG, "g", "t", offsets()) == (count, 0)
    assert DeliveryState.objects.filter(acked=True).count() == count


def test_scheduled_messages_move_past_one_iteration() -> None:
    count = 2 * schedule.MOVED_AT_ONCE + 1
    ScheduledMessageFactory.insert(count)
    while schedule.move_due(LOG):
        pass
    assert (ScheduledMessage.objects.count(), len(offsets())) == (0, count)


def test_collection_goes_past_one_batch() -> None:
    count = 2 * collect.BATCH + retention.CHUNK + 1
    publish_many("t", range(count))
    horizon = Horizon(LOG)
    horizon.wait()
    assert collect.collect(LOG, horizon).messages == count
    assert not offsets()


def test_collection_goes_past_the_streams_of_one_statement(settings) -> None:
    partitions = 2 * collect.STREAMS_AT_ONCE + 1
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": partitions, "RETENTION": 0}
    publish_many("t", [NewMessage(1, key=str(number)) for number in range(1_000)])
    assert Message.objects.values("partition").distinct().count() == partitions
    horizon = Horizon(LOG)
    horizon.wait()
    assert collect.collect(LOG, horizon).messages == 1_000


def test_partitions_are_taken_past_one_transaction(settings) -> None:
    partitions = 2 * acquire.AT_ONCE + 1
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": partitions}
    groups.register(LOG, "g", "t")
    wanted = range(partitions)
    acquire.acquire(LOG, "s", "g", "t", wanted, priorities=1, lease_duration=60, horizon=0)
    assert PartitionLease.objects.filter(holder="s").count() == partitions


def test_a_file_is_published_past_one_call(tmp_path: Path) -> None:
    count = 2 * queuepublish.AT_ONCE + 1
    file = tmp_path / "lines"
    file.write_text("\n".join(json.dumps({"payload": number}) for number in range(count)))
    assert f"Published {count} messages" in run("queuepublish", "t", "--messages", file).out
    assert len(offsets()) == count


def test_a_consumer_settles_past_one_batch(consuming: Consuming) -> None:
    seen: list[object] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload), batch_size=2)
    publish("t", "first")
    publish_many("t", range(50))
    testing.drain()
    assert sorted(map(str, seen)) == sorted(map(str, ["first", *range(50)]))


def test_rows_are_deleted_past_one_statement_and_none_of_another_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "DELETED_AT_ONCE", 2)
    for group, offset in product("gh", range(1, 6)):
        DeliveryStateFactory(topic="t", consumer_group=group, message_offset=offset)
    delete_all(LOG, "sqlqueue_delivery_state", "message_offset", [1, 2, 3, 5], {"consumer_group": "g", "topic": "t"})
    left = DeliveryState.objects.values_list("consumer_group", "message_offset")
    assert sorted(left) == [("g", 4), *(("h", offset) for offset in range(1, 6))]
