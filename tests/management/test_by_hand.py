"""`manage.py queuepurge` and `queuereschedule`."""

import json

import pytest

from sqlqueue import Delivery, Retry, publish_many
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log import collect
from sqlqueue.log.publish import NewMessage
from sqlqueue.models import DeliveryState, Message, Request, Topic
from sqlqueue.models.request import CANCELLED, DONE
from sqlqueue.operations.reschedule_requests import WaitingDeliveries, request_rescheduling
from tests.consuming import Consuming
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def shop(consuming: Consuming) -> Consuming:
    """Ten orders, of which the group "mail" fails to send those from 7 on for an hour."""

    @consuming.consumer("orders", group="mail", ordering="none")
    def send(delivery: Delivery) -> None:
        if delivery.payload >= 7:
            raise Retry(f"shop {delivery.payload} is closed", delay=3600)

    publish_many("orders", [NewMessage(n, key="a") for n in range(10)])
    consuming.drain()
    return consuming


def left() -> list[int]:
    return list(Message.objects.filter(topic="orders").order_by("offset").values_list("payload", flat=True))


class TestPurge:
    def test_a_dry_run_counts_and_changes_nothing(self, shop: Consuming) -> None:
        dry = run("queuepurge", "orders", "--dry-run")
        assert "are 10 messages" in dry.out
        assert "mail" in dry.out
        assert "Nothing was done." in dry.out
        told = json.loads(run("queuepurge", "orders", "--dry-run", "--json").out)
        assert (told["messages"], told["unsettled"], told["done"]) == (10, {"mail": 3}, False)
        assert (left(), Topic.objects.get(name="orders").purged_to) == (list(range(10)), 0)

    def test_what_is_settled_goes(self, shop: Consuming) -> None:
        refused = run("queuepurge", "orders")
        assert (refused.code, "nothing was done" in refused.err) == (3, True)
        assert left() == list(range(10))
        assert "Deleted 7 messages" in run("queuepurge", "orders", "--no-input").out
        assert left() == [7, 8, 9]
        assert run("queuepurge", "orders", "--json").code == 1

    def test_what_is_not_settled_goes_if_that_is_said(self, shop: Consuming) -> None:
        told = json.loads(run("queuepurge", "orders", "--unsettled", "--no-input", "--json").out)
        assert (told["deleted"], told["skipped"]) == (10, ["mail"])
        assert left() == []
        assert not DeliveryState.objects.exists()

    def test_past_one_call(self, shop: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(collect, "BATCH", 3)
        assert "Deleted 10 messages" in run("queuepurge", "orders", "--unsettled", "--no-input").out
        assert left() == []

    def test_up_to_a_place(self, shop: Consuming) -> None:
        third = Message.objects.get(payload=3).offset
        assert "Deleted 3 messages" in run("queuepurge", "orders", "--before", str(third), "--no-input").out
        assert left()[0] == 3

    def test_what_is_not_there_or_has_dead_letters(self, shop: Consuming) -> None:
        Topic.objects.create(name="orders_dlq", partitions=1)
        assert "Did you mean" in run("queuepurge", "ordres", "--no-input").err
        assert "discard those" in run("queuepurge", "orders_dlq", "--no-input").err


class TestReschedule:
    def test_is_ordered_and_waited_for(self, shop: Consuming) -> None:
        dry = run("queuereschedule", "orders", "mail", "--dry-run", "--error", "CLOSED")
        assert "3 deliveries of group 'mail' wait.\nNothing was done." in dry.out
        assert run("queuereschedule", "orders", "mail").code == 3
        done = run("queuereschedule", "orders", "mail", "--wait", "--no-input", "--attempts", "0")
        assert "Done: 3 were rescheduled." in done.out
        assert DeliveryState.objects.unsettled().filter(invisible_until__lte=DatabaseNow()).count() == 3
        listed = json.loads(run("queuerequests", "list", "--json").out)
        assert [(one["state"], one["done"]) for one in listed] == [(DONE, 3)]
        assert "mail" in run("queuerequests", "list").out

    def test_some_of_them(self, shop: Consuming) -> None:
        eighth = str(Message.objects.get(payload=8).offset)
        for options, count in (
            (["--from", eighth], 2),
            (["--to", eighth], 1),
            (["--which", "postponed"], 0),
            (["--which", "failing", "--error", "shop 9"], 1),
            (["--key", "a"], 3),
            (["--key", "A"], 0),
        ):
            dry = run("queuereschedule", "orders", "mail", "--dry-run", *options)
            assert dry.out.startswith(f"{count} deliveries of group"), options
        refused = run("queuereschedule", "orders", "mail", "--which", "postponed", "--no-input")
        assert (refused.code, "nothing to do" in refused.err) == (1, True)

    def test_is_cancelled(self, shop: Consuming) -> None:
        made = request_rescheduling(LOG, WaitingDeliveries("orders", "mail"), rate=1)
        assert f"Request {made.pk} is {CANCELLED}." in run("queuerequests", "cancel", str(made.pk)).out
        assert "nothing to do" in run("queuerequests", "cancel", str(made.pk)).out
        assert run("queuerequests", "cancel", str(made.pk + 1)).code == 1
        assert Request.objects.get().state == CANCELLED

    def test_what_makes_no_sense_is_refused(self, shop: Consuming) -> None:
        assert "Did you mean 'mail'?" in run("queuereschedule", "orders", "mial", "--no-input").err
        for option, value in (("--rate", "0"), ("--delay", "-1"), ("--attempts", "x")):
            refused = run("queuereschedule", "orders", "mail", option, value)
            assert f"argument {option}: '{value}' is no" in refused.err
        assert "There are no requests." in run("queuerequests", "list").out
