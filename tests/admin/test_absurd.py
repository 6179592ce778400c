"""URLs with senseless parameters: no page answers them with a server error."""

from urllib.parse import quote

import pytest
from django.contrib import admin
from django.test import Client

from sqlqueue.models import ConsumerGroup, Message, Topic
from tests.admin.stage import Stage

pytestmark = [pytest.mark.once, pytest.mark.django_db]


MODELS = {
    f"{model._meta.app_label}/{model._meta.model_name}": model
    for model in admin.site._registry
    if model._meta.app_label.startswith("sqlqueue")
}
LISTS = sorted(MODELS)
PARAMETERS = {
    "": ("q", "from"),
    "receipt": ("p", "o", "_to_field", "nothing__exact", "pk__in"),  # what all lists leave to the same lines
    "message": ("topic", "key", "topic=t&key", "topic=t&message_id", "offset", "since", "until"),
    "overview": ("hours",),
}
VALUES = ("(", "\0", "9" * 40, "x" * 100_000, "9" * 100_000, "0001-01-01T00:00", "9999-12-31T23:59:59.999999")
PLACES = (
    "[" * 3_000,
    '[0, "\\ud800", "\\ud800", 1, 1, "\\ud800"]',
    '[0, "\\u0000"]',
    '[0, "\\u0000", "\\u0000", 1]',
    '[0, "a", "b", 1e400]',
    '[0, "a", "b", 99999999999999999999999999]',
    "[0, 1e400, 1e400]",
    '[0, "0001-01-01T00:00:00+14:00", 1]',
    '[0, "9999-12-31T23:59:59-14:00", 1e400]',
    "[0, 99999999999999999999999999]",
)
LOOKUPS = (
    ("", "\0"),
    ("", "9" * 40),
    ("__regex", "("),
    ("__range", "1"),
    ("__gt", "9" * 40),
    ("__date", "0001-01-01"),
    ("__exact", "\0"),
    ("__isnull", "x"),
    ("__foo", "x"),
)


def refused(client: Client, addresses: list[str]) -> list[str]:
    """Return the addresses that are answered with 500 or more."""
    client.raise_request_exception = False
    return [address for address in addresses if client.get(address).status_code >= 500]


@pytest.mark.parametrize("model", LISTS)
def test_a_list_answers_every_parameter(admin_client: Client, stage: Stage, model: str) -> None:
    where = f"/admin/{model}/?"
    names = PARAMETERS[""] + PARAMETERS.get(model.partition("/")[2], ())
    plain = [f"{where}{name}={quote(value)}" for name in names for value in VALUES]
    assert not refused(admin_client, plain + [f"{where}from={quote(value)}" for value in PLACES])


@pytest.mark.parametrize("model", [name for name in LISTS if name != "sqlqueue/overview"])
def test_a_page_answers_every_number(admin_client: Client, stage: Stage, model: str) -> None:
    assert not refused(admin_client, [f"/admin/{model}/{number}/change/" for number in ("9" * 40, "9" * 5_000, "²")])


@pytest.mark.parametrize("model", [name for name in LISTS if name != "sqlqueue/overview"])
def test_a_list_answers_every_lookup(admin_client: Client, stage: Stage, model: str) -> None:
    """Of the columns that it filters by, and of one more."""
    found = MODELS[model]
    columns = {*admin.site._registry[found].list_filter, found._meta.fields[-1].name}
    if model == "sqlqueue/receipt":  # of each type
        columns = {field.get_internal_type(): field.name for field in found._meta.fields}.values()
    addresses = [f"/admin/{model}/?{name}{kind}={quote(value)}" for name in columns for kind, value in LOOKUPS]
    assert not refused(admin_client, addresses)


def test_orders_and_single_pages_answer_every_number(admin_client: Client, stage: Stage) -> None:
    numbers = ("9" * 40, "9" * 5_000, "²", "-1", "\0")
    for place in (
        "consumergroup/{}/operation/reschedule/",
        "scheduledmessage/{}/change/",
        "request/{}/change/",
        "topic/{}/operation/purge/",
    ):
        addresses = [f"/admin/sqlqueue/{place.format(quote(number))}" for number in numbers]
        assert not refused(admin_client, addresses), place


def test_a_lists_own_filters_are_answered(admin_client: Client, stage: Stage) -> None:
    assert admin_client.get("/admin/sqlqueue/topic/?paused__exact=1").status_code == 200
    assert admin_client.get("/admin/sqlqueue/topic/?paused__exact=0").status_code == 200
    assert admin_client.get("/admin/sqlqueue/topic/?name__regex=%28").status_code == 400


def test_a_page_of_a_row_that_cannot_be_is_none(admin_client: Client, stage: Stage) -> None:
    keys = ["\0", "9" * 40, "-1", "x" * 500, "a_00", "_ff", "'", "²", "1e400"]
    pages = ["change", "history", "delete", "operation/move"]
    assert not refused(
        admin_client,
        [f"/admin/{model}/{quote(key)}/{page}/" for model in LISTS for key in keys for page in pages],
    )


def test_pages_beside_the_lists_answer_every_parameter(admin_client: Client, stage: Stage) -> None:
    group = ConsumerGroup.objects.first()
    places = {
        "deadletter/": ("topic", "group"),
        "deadletter/list/": ("topic", "topic=t&group", "topic=t&fingerprint", "topic=t&from"),
        f"consumergroup/{group.pk}/change/": ("hours",),
        f"consumergroup/{group.pk}/operation/move/": tuple(
            f"count=1&{name}" for name in ("offset", "time", "partition", "offset=1&partition", "partition=0&time")
        ),
        f"topic/{Topic.objects.first().pk}/change/": ("hours",),
        f"message/{Message.objects.first().pk}/change/": ("x",),
    }
    assert not refused(
        admin_client,
        [
            f"/admin/sqlqueue/{place}?{name}={quote(value)}"
            for place, names in places.items()
            for name in names
            for value in VALUES
        ],
    )
