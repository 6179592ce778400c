"""Nobody sees or does what they may not: without login, without the permission, without the CSRF token."""

from collections.abc import Callable

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from sqlqueue.models import DeliveryState, Message, Request
from sqlqueue.operations.replay_requests import request_replay
from tests.admin.operating import operation
from tests.admin.stage import Stage
from tests.consuming import Consuming
from tests.logs import LOG

pytestmark = pytest.mark.once


@pytest.fixture
def stage(consuming: Consuming) -> Stage:
    stage = Stage(consuming)
    request_replay(LOG, "t", offsets=stage.dead_letters[:1])
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


def orders(stage: Stage) -> list[tuple[str, dict[str, object], tuple[str, ...]]]:
    """Every page that does something, with what it takes, and who may do it."""
    about = {"_selected_action": [stage.failing], "group": "g", "delay": "0", "confirmed": "1"}
    letters = {"_selected_action": stage.dead_letters, "topic": "t", "reason": "x", "through": 10**9, "confirmed": "1"}
    return [
        (operation("message", "republish"), about, ("view_message", "redeliver_message")),
        (operation("message", "reschedule"), about, ("view_message", "reschedule_deliverystate")),
        (operation("message", "acknowledge"), about, ("view_message", "reschedule_deliverystate")),
        (operation("message", "cancel"), about, ("view_message", "redeliver_message")),
        (operation("deadletter", "replay"), letters, ("view_message", "replay_message")),
        (operation("deadletter", "discard"), letters, ("view_message", "discard_message")),
        (
            operation("request", "cancel", Request.objects.get().pk),
            {},
            ("view_request", "replay_message"),
        ),
    ]


def everything() -> list[object]:
    """All that an action could change."""
    return [list(model.objects.order_by("pk").values()) for model in (Message, DeliveryState, Request, LogEntry)]


def test_nothing_without_login(client: Client, stage: Stage) -> None:
    before = everything()
    for address in [*pages(stage), *(address for address, _, _ in orders(stage))]:
        for answer in (client.get(address), client.post(address)):
            assert answer.status_code == 302, address
            assert answer.url.startswith(reverse("admin:login"))
    for address, values, _ in orders(stage):
        assert client.post(address, values).url.startswith(reverse("admin:login"))
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
    every = {permission for _, _, wanted in orders(stage) for permission in wanted}
    before = everything()
    for address, values, wanted in orders(stage):
        for missing in wanted:
            client = staff(*sorted(every - {missing}))
            for sent in (
                values,
                {**values, "confirmed": ""},
                {name: values[name] for name in values if name[0] != "c"},
            ):
                assert client.post(address, sent).status_code == 403, (address, missing)
            User.objects.filter(username__startswith="staff").delete()
    assert everything() == before


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
    for address, values, _ in orders(stage):
        assert client.post(address, values).status_code == 403, address
    list_ = reverse("admin:sqlqueue_message_changelist")
    assert client.post(list_, {"action": "cancel", "_selected_action": [stage.failing]}).status_code == 403
    assert everything() == before
    # With it they are carried out: it was the token that was missing.
    client.get(reverse("admin:sqlqueue_message_change", args=[stage.failing]))
    token = client.cookies["csrftoken"].value
    for address, values, _ in orders(stage):
        assert client.post(address, {**values, "csrfmiddlewaretoken": token}).status_code == 302, address
    assert everything() != before


def test_no_order_by_a_link(admin_client: Client, stage: Stage) -> None:
    before = everything()
    for address, _, _ in orders(stage):
        assert admin_client.get(address).status_code == 405, address
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
