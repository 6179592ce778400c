"""`manage.py queuetopic`: create, alter and drop."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue import ConfigurationError, Delivery, HandOver, Reject, publish, publish_many
from sqlqueue.contrib.people.models import WorkItem, WorkItemEvent
from sqlqueue.contrib.people.work import add_comment, finish
from sqlqueue.leases import heartbeat
from sqlqueue.log import groups
from sqlqueue.log.publish import NewMessage
from sqlqueue.models import (
    BlockedRange,
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    PartitionLease,
    ScheduledMessage,
    Topic,
)
from sqlqueue.operations import drop as drop_module
from sqlqueue.operations.drop import drop
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0


@pytest.fixture
def shop(consuming: Consuming) -> Consuming:
    """Ten orders that the group "mail" has settled; one of them is a dead letter."""

    @consuming.consumer("orders", group="mail")
    def send(delivery: Delivery) -> None:
        if delivery.payload == 7:
            raise Reject("no")

    publish_many("orders", [NewMessage(n, key=f"k{n}") for n in range(10)])
    consuming.drain()
    return consuming


class TestCreate:
    def test_as_the_settings_say(self, consuming: Consuming) -> None:
        assert run("queuetopic", "create", "orders").code == 0
        made = Topic.objects.get()
        publish("others", 1)
        by_use = Topic.objects.get(name="others")
        for field in ("partitions", "priorities", "retention", "history", "overridden"):
            assert getattr(made, field) == getattr(by_use, field)

    def test_with_options_of_its_own(self, consuming: Consuming, settings: Any) -> None:
        settings.SQLQUEUE = {**QUICK, "STRICT_TOPICS": True}
        with pytest.raises(ConfigurationError, match="is not declared"):
            publish("orders", 1)
        words = ("--partitions", 7, "--priorities", 2, "--retention", "2h", "--history", "all")
        said = run("queuetopic", "create", "orders", *words)
        assert "7 partitions, 2 priorities, retention 2 h, history all" in said.out
        assert "the settings say partitions 4" in said.err
        publish("orders", 1, priority=1)  # it is declared
        topic = Topic.objects.get()
        assert (topic.partitions, topic.priorities, topic.retention, topic.history) == (7, 2, 2 * HOUR, "all")
        assert topic.overridden == ("retention", "history")

    def test_a_dry_run_makes_none(self, consuming: Consuming) -> None:
        said = run("queuetopic", "create", "orders", "--retention", "forever", "--dry-run").out
        assert "retention for ever" in said
        assert "Nothing was done." in said
        assert not Topic.objects.exists()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("orders",), "'orders' is there already: `queuetopic alter`"),
            (("a b",), "is not a name"),
            (("orders_dlq",), "is for the dead letters of 'orders'"),
            (("x", "--partitions", "0"), "'0' is not a whole number from 1 to 10000"),
            (("x", "--priorities", "101"), "'101' is not a whole number from 1 to 100"),
            (("x", "--retention", "5"), "'5' is not a number from 0 with a unit (90s, 15m, 2h, 3d), nor 'forever'"),
            (("x", "--retention", "-5s"), "argument --retention"),
            (("x", "--retention", "99999999d"), "is not a number from 0 with a unit"),
            (("x", "--history", "some"), "invalid choice: 'some'"),
        ],
    )
    def test_what_is_refused(self, shop: Consuming, words: tuple[str, ...], said: str) -> None:
        refused = run("queuetopic", "create", *words)
        assert refused.code != 0
        assert said in refused.err
        assert not Topic.objects.exclude(name__in=["orders", "orders_dlq"]).exists()


class TestAlter:
    def test_options_are_overridden_one_after_another_and_taken_back(self, shop: Consuming) -> None:
        said = run("queuetopic", "alter", "orders", "--history", "all").out
        assert "history: failures becomes all" in said
        run("queuetopic", "alter", "orders", "--retention", "forever")
        topic = Topic.objects.get(name="orders")
        assert (topic.retention, topic.history, topic.overridden) == (None, "all", ("retention", "history"))
        assert "retention: for ever becomes 7 d" in run("queuetopic", "alter", "orders", "--as-settings").out
        topic.refresh_from_db()
        assert (topic.history, topic.overridden) == ("failures", ())

    def test_what_a_shorter_retention_releases_is_counted_and_asked_for(self, shop: Consuming) -> None:
        oldest = list(Message.objects.filter(topic="orders").order_by("offset").values_list("offset", flat=True)[:3])
        Message.objects.filter(offset__in=oldest).update(created_at=timezone.now() - timedelta(hours=3))
        words = ("queuetopic", "alter", "orders", "--retention", "2h")
        dry = run(*words, "--dry-run")
        assert "3 messages are older than that" in dry.out
        assert "Nothing was done." in dry.out
        assert run(*words).code == 3
        assert Topic.objects.get(name="orders").retention == 7 * 24 * HOUR
        assert run(*words, "--no-input").code == 0
        assert Topic.objects.get(name="orders").retention == 2 * HOUR

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("ordres", "--history", "all"), "Did you mean 'orders'?"),
            (("orders",), "say what to change"),
            (("orders", "--partitions", "4"), "has 4 partitions already"),
            (("orders", "--partitions", "64", "--history", "all"), "one thing at a time"),
            (("orders", "--abort"), "nothing to abort"),
            (("orders_dlq", "--partitions", "64", "--no-input"), "has dead letters"),
            (("orders_dlq", "--retention", "1h"), "kept until they are replayed or discarded"),
        ],
    )
    def test_what_is_refused(self, shop: Consuming, words: tuple[str, ...], said: str) -> None:
        before = list(Topic.objects.order_by("name").values())
        refused = run("queuetopic", "alter", *words)
        assert refused.code == 1
        assert said in refused.err
        assert list(Topic.objects.order_by("name").values()) == before

    def test_dead_letters_history(self, shop: Consuming) -> None:
        assert "retention" not in run("queuetopic", "alter", "orders_dlq", "--history", "none", "--no-input").out
        topic = Topic.objects.get(name="orders_dlq")
        assert (topic.history, topic.retention) == ("none", None)


class TestDrop:
    def rows(self) -> int:
        models = (Message, ScheduledMessage, ConsumerGroup, Offset, PartitionLease, DeliveryState, BlockedRange)
        return sum(model.objects.filter(topic__startswith="orders").count() for model in models)

    def test_a_dry_run_says_what_would_be_lost(self, shop: Consuming) -> None:
        publish("orders", 11, delay=60)
        before = self.rows()
        said = run("queuetopic", "drop", "orders", "--dry-run").out
        assert "10 messages, 1 scheduled ones, 1 dead letters; 0 consumer processes" in said
        assert "Nothing was done." in said
        told = json.loads(run("queuetopic", "drop", "orders", "--dry-run", "--json").out)
        assert (told["messages"], told["unsettled"], told["done"]) == (10, {"mail": 0}, False)
        assert self.rows() == before
        assert Topic.objects.count() == 2

    def test_what_is_not_settled_has_to_be_said(self, shop: Consuming) -> None:
        words = ("queuetopic", "drop", "orders")
        refused = run(*words, "--no-input")
        assert (refused.code, "give --unsettled" in refused.err) == (1, True)
        assert run(*words, "--unsettled").code == 3
        assert run(*words, "--json").code == 1
        assert Message.objects.filter(topic="orders").count() == 10
        assert "Dropped." in run(*words, "--unsettled", "--no-input").out
        assert self.rows() == 0
        assert not Topic.objects.exists()

    def test_one_that_is_settled_goes_and_may_come_again(self, consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("orders", lambda delivery: seen.append(delivery.payload))
        publish_many("orders", range(10))
        publish("others", 1)
        consuming.drain()
        told = json.loads(run("queuetopic", "drop", "orders", "--no-input", "--json").out)
        assert (told["messages"], told["done"]) == (10, True)
        assert self.rows() == 0
        assert Topic.objects.get().name == "others"
        assert Message.objects.count() == 1
        assert run("queuetopic", "create", "orders", "--partitions", "2").code == 0
        publish_many("orders", range(10, 20))
        consuming.drain()
        assert sorted(seen) == list(range(20))
        assert PartitionLease.objects.filter(topic="orders").count() == 2

    def test_open_work_items_have_to_be_said_and_those_that_are_done_stay(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(drop_module, "DELETED_AT_ONCE", 1)

        def handle(delivery: Delivery) -> None:
            raise HandOver("look")

        consuming.consumer("orders", handle)
        publish_many("orders", range(3))
        consuming.drain()
        first, second, done = WorkItem.objects.order_by("pk")
        WorkItem.objects.filter(pk=first.pk).update(topic="orders_dlq")
        add_comment(second.pk, "ann", "I know her")
        finish(done.pk, 0, "ann", {})
        assert "2 open work items: the purge leaves them" in run("queuepurge", "orders", "--dry-run").out
        assert (
            json.loads(run("queuepurge", "orders", "--no-input", "--json").out)["effects"]["open_work_items"]["count"]
            == 2
        )
        words = ("queuetopic", "drop", "orders")
        assert "0 dead letters, 2 open work items" in run(*words, "--dry-run").out
        refused = run(*words, "--no-input")
        assert (refused.code, "give --unsettled" in refused.err) == (1, True)
        assert WorkItem.objects.count() == 3
        assert (
            json.loads(run(*words, "--no-input", "--unsettled", "--json").out)["effects"]["open_work_items"]["count"]
            == 2
        )
        assert list(WorkItem.objects.values_list("pk", flat=True)) == [done.pk]
        assert WorkItemEvent.objects.get().item_id == done.pk

    def test_more_than_one_delete(self, shop: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(drop_module, "DELETED_AT_ONCE", 3)
        publish("orders", 12, key="k1")
        counts: list[int] = []
        drop(LOG, "orders", unsettled=True, deleted=counts.append)
        assert counts == [3, 6, 9, 11, 12]
        assert self.rows() == 0

    def test_one_that_no_group_has_read(self, consuming: Consuming) -> None:
        publish("orders", 1)
        assert "No group has read them." in run("queuetopic", "drop", "orders", "--dry-run").out
        assert run("queuetopic", "drop", "orders", "--no-input").code == 1
        assert run("queuetopic", "drop", "orders", "--no-input", "--unsettled").code == 0

    def test_one_that_is_served(self, shop: Consuming) -> None:
        heartbeat.beat(LOG, "shop-1:4711", [("mail", "orders")], lease_duration=60)
        refused = run("queuetopic", "drop", "orders", "--unsettled", "--no-input")
        assert (refused.code, "1 consumer process(es) serve topic 'orders'" in refused.err) == (1, True)
        assert Message.objects.filter(topic="orders").count() == 10
        assert not Topic.objects.get(name="orders").paused

    def test_what_is_published_meanwhile_is_not_lost_unsaid(
        self, shop: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        removed = groups.remove

        def publish_then(*place: Any) -> bool:
            monkeypatch.setattr(drop_module, "DELETED_AT_ONCE", 0)  # it comes after the deletes
            return removed(*place)

        monkeypatch.setattr(groups, "remove", publish_then)
        with pytest.raises(ConfigurationError, match="was used meanwhile"):
            drop(LOG, "orders", unsettled=True)
        assert Topic.objects.get(name="orders").paused
        monkeypatch.undo()
        drop(LOG, "orders", unsettled=True)
        assert not Topic.objects.exists()

    @pytest.mark.parametrize("place", ["_close", "_delete_some"])
    def test_what_is_published_after_the_preview_is_kept(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        consuming.consumer("orders", lambda delivery: None)
        publish("orders", 1)
        consuming.drain()
        original = getattr(drop_module, place)

        def publish_first(*values: Any) -> Any:
            monkeypatch.setattr(drop_module, place, original)
            publish("orders", 2)
            return original(*values)

        monkeypatch.setattr(drop_module, place, publish_first)
        with pytest.raises(ConfigurationError, match="would be lost" if place == "_close" else "used meanwhile"):
            drop(LOG, "orders")
        assert 2 in Message.objects.filter(topic="orders").values_list("payload", flat=True)
        assert Topic.objects.get(name="orders").paused == (place == "_delete_some")

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("ordres", "Did you mean 'orders'?"),
            ("orders_dlq", "goes with the topic whose dead letters it has"),
            ("tasks.default", "is an app's own"),
        ],
    )
    def test_what_is_refused(self, shop: Consuming, name: str, said: str) -> None:
        Topic.objects.create(name="tasks.default", partitions=1)
        refused = run("queuetopic", "drop", name, "--no-input", "--unsettled")
        assert (refused.code, said in refused.err) == (1, True)
        assert Topic.objects.count() == 3
