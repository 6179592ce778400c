"""A group's hours and limits in the admin: an override is one, is shown as one, and is taken back."""

from collections.abc import Callable

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from sqlqueue import publish
from sqlqueue.core.flow import Flow, checked_flow, in_effect
from sqlqueue.log.groups import declare_flows, register
from sqlqueue.models import ConsumerGroup
from tests.admin.operating import operation
from tests.admin.test_overview import page, words
from tests.logs import LOG

pytestmark = [pytest.mark.django_db, pytest.mark.once]

CONFIRMED = {"confirmed": "1"}
NIGHT = "22:00-06:00 Europe/Berlin"


@pytest.fixture(autouse=True)
def group() -> ConsumerGroup:
    publish("orders", 1)
    register(LOG, "books", "orders")
    declare_flows(LOG, {("books", "orders"): checked_flow({"active": NIGHT}, [])})
    return ConsumerGroup.objects.get()


def path(group: ConsumerGroup, name: str) -> str:
    if name != "change":
        return operation("consumergroup", name, group.pk)
    return f"/admin/sqlqueue/consumergroup/{group.pk}/change/"


def test_an_override_is_shown_noted_and_taken_back(staff: Callable[..., Client], group: ConsumerGroup) -> None:
    client = staff("view_consumergroup", "change_consumergroup")
    assert f"Active hours: {NIGHT}." in words(page(client, path(group, "change")))
    assert f"Its consumers say: {NIGHT}" in words(page(client, path(group, "limits")))
    given = {"override_active": "on", "active": "sat-sun 00:00-24:00", **CONFIRMED}
    assert client.post(path(group, "limits"), given)["Location"] == path(group, "change")
    client.post(path(group, "limits"), given)
    [entry] = LogEntry.objects.all()
    assert entry.change_message == f"Active hours: {NIGHT} → sat-sun 00:00-24:00, overridden."
    text = f"Active hours: sat-sun 00:00-24:00, overridden. Its consumers say: {NIGHT}."
    assert text in words(page(client, path(group, "change")))
    client.post(path(group, "limits"), {"override_active": "on", "active": "", **CONFIRMED})
    assert f"Active hours: no limit, overridden. Its consumers say: {NIGHT}." in words(
        page(client, path(group, "change"))
    )
    client.post(path(group, "limits"), CONFIRMED)
    assert ConsumerGroup.objects.get().flow_overrides is None
    text = f"Active hours: no limit → {NIGHT}, as declared."
    assert LogEntry.objects.latest("pk").change_message == text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"active": "at night"}, "cannot be read"),
        ({"active": "08:00-08:00"}, "is empty"),
        ({"rate_limit": "100"}, "cannot be read"),
        ({"retry_budget": "often"}, "cannot be read"),
        ({"rate_limit_per_key": "1"}, "cannot be read"),
        ({"concurrency_limit": "0"}, "greater than or equal to 1"),
        ({"concurrency_limit_per_key": "0"}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused(
    staff: Callable[..., Client], group: ConsumerGroup, given: dict[str, str], said: str
) -> None:
    overrides = {f"override_{name}": "on" for name in given}
    answer = staff("view_consumergroup", "change_consumergroup").post(
        path(group, "limits"), {**given, **overrides, **CONFIRMED}
    )
    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert ConsumerGroup.objects.get().flow_overrides is None


def test_limits_are_overridden_together(staff: Callable[..., Client], group: ConsumerGroup) -> None:
    given = {"rate_limit": "100/m", "rate_limit_per_key": "1/s", "concurrency_limit": "10", "retry_budget": "20/m"}
    given["concurrency_limit_per_key"] = "2"
    overrides = {f"override_{name}": "on" for name in given}
    client = staff("view_consumergroup", "change_consumergroup")
    client.post(path(group, "limits"), {**given, **overrides, **CONFIRMED})
    flow = in_effect(*ConsumerGroup.objects.values_list("flow", "flow_overrides").get())
    assert flow.as_dict() == {**given, "concurrency_limit": 10, "concurrency_limit_per_key": 2, "active": NIGHT}
    assert "Concurrency limit: 10, overridden. Its consumers say: no limit." in words(
        page(client, path(group, "change"))
    )


def test_nothing_is_said_of_a_group_without_any(staff: Callable[..., Client], group: ConsumerGroup) -> None:
    declare_flows(LOG, {("books", "orders"): Flow()})
    assert "Active hours" not in words(page(staff("view_consumergroup"), path(group, "change")))
