"""Nobody sees or does what they may not: without login, without the permission, without the CSRF token."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from sqlqueue import publish
from sqlqueue.models import (
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    PeriodicSchedule,
    Request,
    ScheduledMessage,
    Topic,
)
from sqlqueue.operations.replay_requests import request_replay
from tests.admin.operating import operation
from tests.admin.stage import Stage
from tests.consuming import Consuming
from tests.log.test_ticks import declared, schedule
from tests.logs import LOG

pytestmark = pytest.mark.once


@pytest.fixture
def stage(consuming: Consuming) -> Stage:
    stage = Stage(consuming)
    request_replay(LOG, "t", offsets=stage.dead_letters[:1])
    declared(schedule())
    for payload in range(2):
        publish("t", payload, delay=3600)
    return stage


def pages(stage: Stage) -> dict[str, str]:
    """Every page that shows something, and who may see it."""
    return {
        reverse("admin:sqlqueue_message_changelist"): "view_message",
        reverse("admin:sqlqueue_message_change", args=[stage.failing]): "view_message",
        reverse("admin:sqlqueue_message_history", args=[stage.failing]): "view_message",
        reverse("admin:sqlqueue_deadletter_changelist"): "view_message",
        reverse("admin:sqlqueue_deadletter_list") + "?topic=t": "view_message",
        reverse("admin:sqlqueue_request_changelist"): "view_request",
        reverse("admin:sqlqueue_request_change", args=[Request.objects.get().pk]): "view_request",
    }


class Order(NamedTuple):
    """An operation: on the row with a key, or on ticked ones; what it takes, and who may do it."""

    model: str
    name: str
    key: object
    values: dict[str, Any]
    wanted: tuple[str, ...]

    @property
    def address(self) -> str:
        return operation(self.model, self.name, self.key)

    @property
    def page(self) -> str:
        return reverse(f"admin:sqlqueue_{self.model}_change", args=[quote(self.key)])

    @property
    def asks(self) -> bool:
        """Whether it has a page that asks, to which links lead."""
        found = admin.site._registry[apps.get_model("sqlqueue", self.model)]
        return self.key is not None and next(one for one in found.operations if one.name == self.name).asks


def orders(stage: Stage) -> list[Order]:
    """Everything that may be done, in an order in which it can be."""
    group = ConsumerGroup.objects.get(consumer_group="g").pk
    first, second = ScheduledMessage.objects.order_by("pk").values_list("pk", flat=True)
    about = {"_selected_action": [stage.failing], "group": "g", "delay": "0"}
    letters = {"_selected_action": stage.dead_letters, "topic": "t", "reason": "x", "through": 10**9}
    corrected = {"at": "2030-01-01T00:00:00", "topic": "t", "priority": "0", "payload_json": "1"}
    redeliver, reschedule = ("view_message", "redeliver_message"), ("view_message", "reschedule_deliverystate")
    many = ("view_consumergroup", "view_request", "reschedule_deliverystate")
    of_group, of_topic, of_schedule = "consumergroup", "topic", "periodicschedule"
    return [
        Order(of_group, "reschedule", group, {"delay": "0"}, many),
        Order("message", "republish", None, about, redeliver),
        Order("message", "reschedule", None, about, reschedule),
        Order("message", "acknowledge", None, about, reschedule),
        Order("message", "cancel", None, about, redeliver),
        Order("message", "delete", stage.good[0], {"reason": "x"}, ("view_message", "delete_message")),
        Order("deadletter", "replay", None, letters, ("view_message", "replay_message")),
        Order("deadletter", "discard", None, letters, ("view_message", "discard_message")),
        Order("request", "cancel", Request.objects.get().pk, {}, ("view_request", "replay_message")),
        Order(of_group, "limits", group, {}, ("view_consumergroup", "change_consumergroup")),
        Order(of_group, "pause", group, {}, ("view_consumergroup", "pause_consumergroup")),
        Order(of_group, "resume", group, {}, ("view_consumergroup", "pause_consumergroup")),
        Order(of_group, "move", group, {"offset": "0"}, ("view_consumergroup", "replay_consumergroup")),
        Order(of_group, "remove", group, {}, ("view_consumergroup", "delete_consumergroup")),
        Order(of_topic, "options", "t", {}, ("view_topic", "change_topic")),
        Order(of_topic, "pause", "t", {}, ("view_topic", "pause_topic")),
        Order(of_topic, "resume", "t", {}, ("view_topic", "pause_topic")),
        Order(of_topic, "purge", "t", {}, ("view_topic", "purge_topic")),
        Order(of_schedule, "pause", "job", {}, ("view_periodicschedule", "pause_periodicschedule")),
        Order(of_schedule, "resume", "job", {}, ("view_periodicschedule", "pause_periodicschedule")),
        Order(of_schedule, "run", "job", {}, ("view_periodicschedule", "run_periodicschedule")),
        Order("scheduledmessage", "correct", first, corrected, ("view_scheduledmessage", "change_scheduledmessage")),
        Order("scheduledmessage", "run-now", first, {}, ("view_scheduledmessage", "change_scheduledmessage")),
        Order("scheduledmessage", "take-back", second, {}, ("view_scheduledmessage", "delete_scheduledmessage")),
    ]


def everything() -> list[object]:
    """All that an operation could change."""
    models: list[Any] = [Message, DeliveryState, Request, LogEntry, ConsumerGroup, Topic, Offset]
    models += [ScheduledMessage, PeriodicSchedule]
    return [list(model.objects.order_by("pk").values()) for model in models]


def test_none_is_missing_here(stage: Stage) -> None:
    """But those of other apps, which have tests of their own."""
    known = {(order.model, order.name) for order in orders(stage)}
    for model, found in admin.site._registry.items():
        if model._meta.app_label == "sqlqueue":
            names = {(model._meta.model_name, one.name) for one in getattr(found, "operations", ())}
            assert names <= known


def test_nothing_without_login(client: Client, stage: Stage) -> None:
    before = everything()
    for address in [*pages(stage), *(order.address for order in orders(stage))]:
        for answer in (client.get(address), client.post(address)):
            assert answer.status_code == 302, address
            assert answer.url.startswith(reverse("admin:login"))
    assert everything() == before


def test_no_page_without_its_permission(staff: Callable[..., Client], stage: Stage) -> None:
    stranger = staff()
    for address in pages(stage):
        assert stranger.get(address).status_code == 403, address
    for permission in set(pages(stage).values()):
        client = staff(permission)
        for address, wanted in pages(stage).items():
            assert client.get(address).status_code == (200 if wanted == permission else 403), address


def test_no_order_without_all_of_its_permissions(staff: Callable[..., Client], stage: Stage) -> None:
    every = {permission for order in orders(stage) for permission in order.wanted}
    clients = {missing: staff(*sorted(every - {missing})) for missing in every}
    before = everything()
    for order in orders(stage):
        for missing in order.wanted:
            for sent in ({**order.values, "confirmed": "1"}, order.values):
                assert clients[missing].post(order.address, sent).status_code == 403, (order, missing)
            assert clients[missing].get(order.address).status_code == 403, (order, missing)
    assert everything() == before


def test_a_page_offers_what_its_user_may_do(staff: Callable[..., Client], stage: Stage) -> None:
    for order in orders(stage):
        if order.key is None or order.name == "resume":
            continue  # that fits no row as it is
        allowed = staff(*order.wanted).get(order.page).content.decode()
        assert order.address in allowed, order
        view = f"view_{order.model}"
        assert order.address not in staff(view).get(order.page).content.decode(), order


def test_the_list_offers_only_what_is_allowed(staff: Callable[..., Client], stage: Stage) -> None:
    address = reverse("admin:sqlqueue_message_changelist")
    html = staff("view_message", "replay_message").get(address).content.decode()
    assert 'name="action"' not in html
    client = staff("view_message", "redeliver_message")
    html = client.get(address).content.decode()
    assert '<option value="cancel">' in html
    assert '<option value="acknowledge">' not in html
    assert "delete_selected" not in html
    before = everything()
    for action in ("acknowledge", "delete_selected"):
        answer = client.post(address, {"action": action, "_selected_action": [stage.failing], "index": "0"})
        assert answer.status_code == 302  # "No action selected"
    assert everything() == before
    page = client.get(reverse("admin:sqlqueue_message_change", args=[stage.failing])).content.decode()
    assert "/operation/cancel/" in page
    assert "/operation/acknowledge/" not in page
    letter = client.get(reverse("admin:sqlqueue_message_change", args=[stage.dead_letters[0]])).content.decode()
    assert "/operation/" not in letter


def test_no_order_without_the_csrf_token(stage: Stage, admin_user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    before = everything()
    for order in orders(stage):
        assert client.post(order.address, {**order.values, "confirmed": "1"}).status_code == 403, order
    list_ = reverse("admin:sqlqueue_message_changelist")
    assert client.post(list_, {"action": "cancel", "_selected_action": [stage.failing]}).status_code == 403
    assert everything() == before
    # With it they are carried out: it was the token that was missing.
    client.get(reverse("admin:sqlqueue_message_change", args=[stage.failing]))
    token = client.cookies["csrftoken"].value
    for order in orders(stage):
        values = {**order.values, "confirmed": "1", "csrfmiddlewaretoken": token}
        answer = client.post(order.address, values)
        assert answer.status_code == 302, (order, answer.content.decode())
    assert everything() != before


def test_no_order_by_a_link(admin_client: Client, stage: Stage) -> None:
    before = everything()
    for order in orders(stage):
        assert admin_client.get(order.address).status_code == (200 if order.asks else 405), order
    for model in ("message", "deadletter"):
        assert admin_client.post(operation(model, "drop")).status_code == 404
    assert everything() == before


def test_nothing_is_added_edited_or_deleted_by_hand(admin_client: Client, stage: Stage) -> None:
    before = everything()
    for model, pk in (("message", stage.failing), ("request", Request.objects.get().pk)):
        assert admin_client.get(reverse(f"admin:sqlqueue_{model}_add")).status_code == 403
        assert admin_client.post(reverse(f"admin:sqlqueue_{model}_add"), {"topic": "t"}).status_code == 403
        assert (
            admin_client.post(reverse(f"admin:sqlqueue_{model}_delete", args=[pk]), {"post": "yes"}).status_code == 403
        )
        admin_client.post(reverse(f"admin:sqlqueue_{model}_change", args=[pk]), {"topic": "x"})
    assert everything() == before
