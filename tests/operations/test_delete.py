"""Single messages are taken out of the log: those that are settled, or, if that is said, those that wait, too."""

from typing import Any

import pytest
from django.db import connection

from sqlqueue import ConfigurationError, Delivery, NewMessage, Reject, Retry, publish, publish_many
from sqlqueue.log.groups import register
from sqlqueue.models import BlockedRange, DeliveryState, Message
from sqlqueue.operations import messages as deleting
from sqlqueue.operations.messages import Deleted, Unsettled, delete, unsettled
from sqlqueue.stats.group_status import WAITING, status
from tests.consuming import QUICK, Consuming, offset_row
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _one_partition(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "HEARTBEAT_INTERVAL": 0.2, "TOPICS": {"t": {"partitions": 1}}}


def left() -> list[Any]:
    return list(Message.objects.filter(topic="t").order_by("offset").values_list("payload", flat=True))


def offsets(*payloads: Any) -> list[int]:
    rows = Message.objects.filter(topic="t").order_by("offset").values_list("offset", "payload")
    return [offset for offset, payload in rows if payload in payloads]


class Handler:
    def __init__(self) -> None:
        self.broken = True
        self.seen: list[Any] = []

    def __call__(self, delivery: Delivery) -> None:
        if self.broken and str(delivery.payload).startswith("f"):
            raise Retry("no", delay=3600)
        self.seen.append(delivery.payload)


def test_what_every_group_has_settled_goes(consuming: Consuming) -> None:
    handler = Handler()
    consuming.consumer("t", handler, group="g")
    publish_many("t", [NewMessage(p, key=p[-1]) for p in ("f-a", "1-a", "2-b", "3-c")])
    consuming.drain()
    every = offsets("f-a", "1-a", "2-b", "3-c")
    assert unsettled(LOG, "t", every) == {"g": Unsettled(set(every[:2]), set())}
    assert delete(LOG, "t", [*every, 10**9]) == Deleted(2, 2, 0)
    assert left() == ["f-a", "1-a"]
    register(LOG, "new", "t")
    assert unsettled(LOG, "t", every)["new"].waiting == set(every[:2])


def test_a_head_that_waits_is_deleted_and_its_key_goes_on(consuming: Consuming) -> None:
    handler = Handler()
    consuming.consumer("t", handler, group="g")
    publish_many("t", [NewMessage(p, key="a") for p in ("f1", "f2", "3")])
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(retry_count=1, in_flight=0).exists())
    assert delete(LOG, "t", offsets("f1"), also_unsettled=True) == Deleted(1, 0, 0)
    wait_until(
        lambda: DeliveryState.objects.filter(message_offset__in=offsets("f2"), retry_count=1, in_flight=0).exists()
    )
    assert delete(LOG, "t", offsets("f2"), also_unsettled=True) == Deleted(1, 0, 0)
    wait_until(lambda: handler.seen == ["3"])
    wait_until(lambda: not DeliveryState.objects.exists())
    assert left() == ["3"]


def test_what_waits_behind_its_key_is_deleted_out_of_its_range(consuming: Consuming) -> None:
    handler = Handler()
    consuming.consumer("t", handler, group="g")
    publish_many("t", [NewMessage(p, key="a") for p in ("f1", "2", "3", "4")])
    consuming.drain()
    assert BlockedRange.objects.exists()
    consuming.start()
    assert delete(LOG, "t", offsets("2", "4"), also_unsettled=True) == Deleted(2, 0, 0)
    handler.broken = False
    from sqlqueue.operations.reschedule import reschedule

    reschedule(LOG, "g", "t", offsets("f1"))
    wait_until(lambda: handler.seen == ["f1", "3"])
    wait_until(lambda: not DeliveryState.objects.exists() and not BlockedRange.objects.exists())


def test_what_was_read_ahead_is_not_dispatched_from_memory(consuming: Consuming) -> None:
    gate, seen = consuming.gate(), []

    @consuming.consumer("t", group="g", ordering="partition")
    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload == "0":
            gate.wait()

    publish_many("t", [NewMessage(str(n), key=str(n)) for n in range(4)])
    consuming.start(threads=1)
    wait_until(lambda: seen == ["0"])
    assert delete(LOG, "t", offsets("0"), also_unsettled=True) == Deleted(0, 0, 1)  # in flight
    assert status(LOG, Message.objects.get(payload="2"), "g").state == WAITING
    assert delete(LOG, "t", offsets("2", "3"), also_unsettled=True) == Deleted(2, 0, 0)
    gate.set()
    wait_until(lambda: offset_row("t", "g").offset_acked >= offsets("1")[0])
    assert set(seen) == {"0", "1"}


def test_what_no_group_has_read_goes_and_nothing_waits_for_it(consuming: Consuming) -> None:
    handler = Handler()
    consuming.consumer("t", handler, group="g")
    register(LOG, "g", "t")
    register(LOG, "away", "t")
    publish_many("t", [NewMessage(str(n), key="a") for n in range(4)])
    assert delete(LOG, "t", offsets("1", "3")) == Deleted(0, 2, 0)
    assert delete(LOG, "t", offsets("1", "3"), also_unsettled=True) == Deleted(2, 0, 0)
    consuming.drain()
    assert handler.seen == ["0", "2"]
    publish("t", "4", key="a")
    consuming.drain()
    assert offset_row("t", "g").offset_acked == offsets("4")[0]
    assert not DeliveryState.objects.filter(consumer_group="g").exists()


def test_for_one_group_alone_no_other_is_asked(consuming: Consuming) -> None:
    register(LOG, "g", "t")
    register(LOG, "other", "t")
    publish("t", "1", group="g")
    assert set(unsettled(LOG, "t", offsets("1"))) == {"g"}
    assert delete(LOG, "t", offsets("1"), also_unsettled=True) == Deleted(1, 0, 0)


def test_an_id_can_be_published_again() -> None:
    publish("t", 1, id="x")
    assert not publish("t", 2, id="x").created
    delete(LOG, "t", offsets(1))
    assert publish("t", 2, id="x").created


def test_dead_letters_are_for_discarding(consuming: Consuming) -> None:
    @consuming.consumer("t", group="g")
    def handle(delivery: Delivery) -> None:
        raise Reject("no")

    publish("t", 1)
    consuming.drain()
    dead_letter = Message.objects.get(topic="t_dlq")
    with pytest.raises(ConfigurationError, match="discard those"):
        delete(LOG, "t_dlq", [dead_letter.offset])
    assert delete(LOG, "t", offsets(1)) == Deleted(1, 0, 0)  # died: settled
    assert Message.objects.filter(topic="t_dlq").exists()


def test_what_another_transaction_has_locked_is_left() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time: no row is locked")
    publish_many("t", [1, 2])
    with OpenTransaction() as other:
        other.do(lambda: list(Message.objects.filter(offset__in=offsets(1)).select_for_update()))
        assert delete(LOG, "t", offsets(1, 2)) == Deleted(1, 0, 1)
    assert left() == [1]


def test_more_than_one_transaction_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "AT_ONCE", 2)
    register(LOG, "g", "t")
    publish_many("t", range(5))
    assert len(unsettled(LOG, "t", offsets(*range(5)))["g"].waiting) == 5
    assert delete(LOG, "t", offsets(*range(5)), also_unsettled=True) == Deleted(5, 0, 0)
