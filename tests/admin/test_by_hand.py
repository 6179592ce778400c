"""Messages are deleted, topics purged, many deliveries rescheduled in the admin: counted first, with permission."""

import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from sqlqueue import publish
from sqlqueue.admin import group_operations, topics
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log import collect
from sqlqueue.models import ConsumerGroup, DeliveryState, Message, Request
from sqlqueue.models.request import CANCELLED
from sqlqueue.operations import reschedule_requests
from sqlqueue.operations.requests import carry_out
from sqlqueue.operations.reschedule_requests import WaitingDeliveries, request_rescheduling
from tests.admin.operating import operate, operation
from tests.admin.stage import Stage
from tests.logs import LOG
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)


def group(name: str = "g") -> ConsumerGroup:
    return ConsumerGroup.objects.get(consumer_group=name, topic="t")


@pytest.mark.once
class TestDeleting:
    """Messages, with a reason."""

    def give(self, client: Client, chosen: list[int], **wanted: Any) -> str:
        address = operation("message", "delete")
        return client.post(address, {"_selected_action": chosen, **wanted}, follow=True).content.decode()

    def test_says_first_who_has_not_settled_them(self, admin_client: Client, stage: Stage) -> None:
        chosen = [*stage.good[:2], stage.failing]
        asked = self.give(admin_client, chosen)
        assert "g: 1 not settled, 0 in flight." in asked
        assert "Every group has settled all of them." in self.give(admin_client, stage.good)
        refused = self.give(admin_client, chosen, confirmed="1")
        assert "This field is required." in refused
        assert Message.objects.filter(offset__in=chosen).count() == 3
        done = self.give(admin_client, chosen, confirmed="1", reason="they were tests")
        assert "Deleted: 2. Left alone, because a group has not settled them: 1; because they are in flight: 0." in done
        assert list(Message.objects.filter(offset__in=chosen).values_list("offset", flat=True)) == [stage.failing]
        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.user.username) == ("t", "admin")
        assert entry.change_message.endswith("Reason: they were tests")

    def test_goes_over_what_is_not_settled_if_that_is_said(self, admin_client: Client, stage: Stage) -> None:
        done = self.give(admin_client, [stage.failing], confirmed="1", reason="x", also_unsettled="on")
        assert "Deleted: 1." in done
        assert not Message.objects.filter(offset=stage.failing).exists()
        stage.mend()
        stage.consuming.drain()
        assert not DeliveryState.objects.filter(message_offset=stage.failing).exists()

    def test_leaves_dead_letters_to_be_discarded(self, admin_client: Client, stage: Stage) -> None:
        done = self.give(admin_client, stage.dead_letters, confirmed="1", reason="x")
        assert "has dead letters: discard those" in done
        assert Message.objects.filter(offset__in=stage.dead_letters).count() == 3


@pytest.mark.once
class TestPurging:
    """Topics, after a count."""

    address = staticmethod(lambda: operation("topic", "purge", "t"))

    def test_counts_first_and_keeps_what_is_not_settled(self, admin_client: Client, stage: Stage) -> None:
        page = admin_client.get(self.address(), {"count": "1"}).content.decode()
        assert "There are 14 messages up to there." in page
        assert "g has not settled 1 of them." in page
        assert "audit has not settled 0 of them." in page
        assert "Unsettled messages stay until they are settled, and so do the messages behind them" in page
        assert Message.objects.filter(topic="t").count() == 14
        through = re.search(r'type="hidden" name="through" value="(\d+)"', page)
        assert through
        done = operate(admin_client, self.address(), through=through[1]).content.decode()
        assert f"Purged up to offset {through[1]}; deleted at once: 13." in done
        assert list(Message.objects.filter(topic="t").values_list("offset", flat=True))[:1] == [stage.failing]
        assert LogEntry.objects.get().object_id == "t"

    def test_moves_groups_over_what_they_have_not_settled_if_that_is_said(
        self, admin_client: Client, stage: Stage
    ) -> None:
        page = admin_client.get(self.address(), {"count": "1", "unsettled": "on"}).content.decode()
        assert "Unsettled messages are never delivered." in page
        assert '<input type="hidden" name="unsettled" value="on">' in page
        through = Message.objects.filter(topic="t").order_by("-offset")[0].offset
        done = operate(admin_client, self.address(), through=through, unsettled="on").content.decode()
        assert "deleted at once: 14. Groups that skip messages they had not settled: g." in done
        assert not Message.objects.filter(topic="t").exists()
        assert not DeliveryState.objects.exists()
        assert Message.objects.filter(topic="t_dlq").count() == 3

    def test_up_to_a_time(self, admin_client: Client, stage: Stage) -> None:
        Message.objects.filter(offset__in=stage.good[:4]).update(created_at=timezone.now() - timedelta(hours=2))
        when = timezone.localtime(timezone.now() - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
        page = admin_client.get(self.address(), {"count": "1", "time": when}).content.decode()
        assert "There are 4 messages up to there." in page
        assert f"Purge up to offset {stage.good[3]}" in page
        both = admin_client.get(self.address(), {"count": "1", "time": when, "through": "3"}).content.decode()
        assert "Give either an offset or a time." in both

    def test_leaves_the_rest_to_the_consumers(self, admin_client: Client, stage: Stage, monkeypatch: Any) -> None:
        monkeypatch.setattr(topics, "DELETED_AT_ONCE", 2)
        monkeypatch.setattr(collect, "BATCH", 3)
        done = operate(admin_client, self.address(), unsettled="on", through="").content.decode()
        assert "deleted at once: 6." in done
        assert "The consumer processes delete the rest." in done

    def test_is_not_offered_for_dead_letters(self, admin_client: Client, stage: Stage) -> None:
        page = admin_client.get(reverse("admin:sqlqueue_topic_change", args=["t_dlq"])).content.decode()
        assert "/purge/" not in page
        refused = admin_client.post(operation("topic", "purge", "t_dlq"), {"through": "", "confirmed": "1"})
        assert "has dead letters: discard those" in refused.content.decode()
        assert Message.objects.filter(topic="t_dlq").count() == 3


@pytest.mark.once
class TestRescheduling:
    """Many deliveries, with one order."""

    address = staticmethod(lambda name="g": operation("consumergroup", "reschedule", group(name).pk))

    def test_counts_first_then_orders_and_shows_how_far_it_is(self, admin_client: Client, stage: Stage) -> None:
        change = reverse("admin:sqlqueue_consumergroup_change", args=[group().pk])
        assert f'href="{self.address()}"' in admin_client.get(change).content.decode()
        wanted = {"error": "LATER", "delay": "0", "attempts": "0", "rate": "5"}
        page = admin_client.get(self.address(), {**wanted, "count": "1"}).content.decode()
        assert "1 delivery would be rescheduled." in page
        for name, value in wanted.items():
            assert f'<input type="hidden" name="{name}" value="{value}">' in page
        assert not Request.objects.exists()
        done = operate(admin_client, self.address(), **wanted).content.decode()
        assert "Requested to reschedule 1 deliveries of g of t." in done
        assert "0 of 1: waits for a consumer process" in done
        made = Request.objects.get()
        assert (made.topic, made.consumer_group, made.rate) == ("t", "g", 5.0)
        assert (made.options["error"], made.options["attempts"]) == ("LATER", 0)
        assert made.ordered_by == "admin"
        while carry_out(LOG):
            pass
        page = admin_client.get(reverse("admin:sqlqueue_request_change", args=[made.pk])).content.decode()
        assert "1 of 1: done" in page
        assert 'value="1"></progress>' in page
        assert (
            DeliveryState.objects.unsettled()
            .filter(invisible_until__lte=DatabaseNow())
            .filter(message_offset=stage.failing)
            .exists()
        )
        assert "1 of 1" in admin_client.get(reverse("admin:sqlqueue_request_changelist")).content.decode()

    def test_of_one_key(self, admin_client: Client, stage: Stage) -> None:
        key = Message.objects.get(offset=stage.failing).partition_key
        wanted = {"key": key, "delay": "0"}
        page = admin_client.get(self.address(), {**wanted, "count": "1"}).content.decode()
        assert "1 delivery would be rescheduled." in page
        done = operate(admin_client, self.address(), **wanted).content.decode()
        assert f"<td>{escape(key)}</td>" in done
        assert Request.objects.get().options["key"] == key

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            ({"error": "no such error"}, "0 deliveries would be rescheduled."),
            ({"which": "postponed"}, "0 deliveries would be rescheduled."),
            ({"which": "failing"}, "1 delivery would be rescheduled."),
            ({"key": "no such key"}, "0 deliveries would be rescheduled."),
            ({"key": "k" * 256}, "at most 255 characters"),
            ({"since": "2100-01-01T00:00"}, "0 deliveries would be rescheduled."),
            ({"until": "2020-01-01T00:00"}, "0 deliveries would be rescheduled."),
            ({"rate": "0"}, "greater than or equal to 0.01"),
            ({"attempts": "-1"}, "greater than or equal to 0"),
            ({"which": "lost"}, "Select a valid choice"),
        ],
    )
    def test_filters(self, admin_client: Client, stage: Stage, wanted: dict[str, str], said: str) -> None:
        sent = {"delay": "0", "count": "1", **wanted}
        assert said in admin_client.get(self.address(), sent).content.decode()

    def test_is_refused_if_nothing_is_left(self, admin_client: Client, stage: Stage) -> None:
        page = operate(admin_client, self.address("audit"), delay="0").content.decode()
        assert "waits for its time: nothing to do" in page
        assert not Request.objects.exists()

    def test_says_that_there_are_more_than_are_counted(
        self, admin_client: Client, stage: Stage, monkeypatch: Any
    ) -> None:
        for module in (reschedule_requests, group_operations):
            monkeypatch.setattr(module, "MOST_COUNTED", 1)
        page = admin_client.get(self.address(), {"delay": "0", "count": "1"}).content.decode()
        assert "1 deliveries or more would be rescheduled." in page

    def test_is_cancelled(self, admin_client: Client, stage: Stage) -> None:
        made = request_rescheduling(LOG, WaitingDeliveries("t", "g"), rate=1)
        stop = operation("request", "cancel", made.pk)
        assert admin_client.get(stop).status_code == 405
        assert "Cancelled. What was done stays done." in admin_client.post(stop, follow=True).content.decode()
        assert "There was nothing left to cancel" in admin_client.post(stop, follow=True).content.decode()
        made.refresh_from_db()
        assert made.state == CANCELLED


def test_publishing_goes_on_after_all_of_it(admin_client: Client, stage: Stage) -> None:
    operate(admin_client, TestPurging.address(), unsettled="on", through="")
    stage.mend()
    publish("t", {"n": "after"}, key="good")
    stage.consuming.drain()
    assert stage.seen[-1] == {"n": "after"}


@pytest.mark.of_time
@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_no_request_waits_long_for_a_transaction_that_publishes(
    admin_client: Client, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (topics, group_operations):
        assert module.LOCK_TIMEOUT < 5
        monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.3)
    purge = operation("topic", "purge", "t")
    move = operation("consumergroup", "move", group().pk)
    with OpenTransaction() as publishing:
        publishing.do(lambda: publish("others", 1))
        began = time.monotonic()
        for address, sent in ((purge, {"through": ""}), (move, {"offset": "0"})):
            page = operate(admin_client, address, **sent).content.decode()
            assert "ransaction that publishes has been open since before offset" in page
            assert "nothing was changed; try again when it has ended" in page
        assert time.monotonic() - began < 10
