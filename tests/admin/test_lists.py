"""The read-only lists: what matters first, every row once, nothing counted, and no user edits them."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from factory import Iterator

from sqlqueue.admin import tables
from sqlqueue.models import (
    CollectedMessage,
    DeliveryState,
    Receipt,
    ScheduledMessage,
)
from tests.admin import operating
from tests.admin.test_overview import page, words
from tests.factories import (
    BlockedRangeFactory,
    CollectedMessageFactory,
    DeliveryStateFactory,
    OffsetFactory,
    PartitionLeaseFactory,
    ReceiptFactory,
    ScheduledMessageFactory,
    SubscriberHeartbeatFactory,
)

pytestmark = pytest.mark.django_db

NOW = datetime.now(timezone.utc)
SOON, PAST = NOW + timedelta(hours=1), NOW - timedelta(hours=1)
PLACE = {"topic": "orders", "consumer_group": "mail"}
READ_ONLY = (
    "subscriberheartbeat",
    "partitionlease",
    "offset",
    "scheduledmessage",
    "deliverystate",
    "blockedrange",
    "receipt",
)


def rows(html: str) -> list[str]:
    """Return the text of each row of a list."""
    body = re.search(r"<tbody>(.*?)</tbody>", html, re.DOTALL)
    return [] if body is None else [words(row) for row in re.findall(r"<tr>.*?</tr>", body[1], re.DOTALL)]


def through(client: Client, model: str) -> list[list[str]]:
    """Return the rows of every page of a list."""
    return [rows(html) for html in operating.through(client, f"/admin/sqlqueue/{model}/")]


def test_refused_messages_come_first_with_their_refusal_then_what_is_due_first(admin_client: Client) -> None:
    for number in range(70):
        ScheduledMessageFactory(topic=f"t{number:03}", due_at=SOON - timedelta(minutes=number % 7))
    for number in range(3):
        ScheduledMessageFactory(topic=f"bad{number}", refused=True, refusal=f"it is too <long>: {number}", due_at=SOON)
    pages = through(admin_client, "scheduledmessage")
    assert [len(some) for some in pages] == [50, 23]
    every = [row for some in pages for row in some]
    assert all(f"refused it is too &lt;long&gt;: {n}" in row for n, row in enumerate(every[:3]))
    ids = [int(row.split()[0]) for row in every[3:]]
    waiting = ScheduledMessage.objects.filter(refused=False).order_by("due_at", "id")
    assert ids == list(waiting.values_list("id", flat=True))


def test_messages_due_in_the_same_microsecond_are_listed_once(admin_client: Client) -> None:
    at = SOON.replace(microsecond=123_456)
    for n in range(120):
        ScheduledMessageFactory(payload=n, due_at=at + timedelta(microseconds=n // 40))
    ids = [int(row.split()[0]) for some in through(admin_client, "scheduledmessage") for row in some]
    assert ids == sorted(ScheduledMessage.objects.values_list("id", flat=True))


def test_leases_without_an_owner_come_first(admin_client: Client) -> None:
    for partition in range(120):
        holder, expires = (("", None), ("gone", PAST), ("here", SOON))[partition % 3]
        PartitionLeaseFactory(**PLACE, partition=partition, holder=holder, valid_until=expires)
    pages = through(admin_client, "partitionlease")
    states = [re.search("free|expired|held", row)[0] for some in pages for row in some]
    assert states == ["free"] * 40 + ["expired"] * 40 + ["held"] * 40
    partitions = [int(re.search(r"orders (\d+)", row)[1]) for some in pages for row in some]
    assert len(set(partitions)) == 120


def test_subscribers_that_do_not_beat_come_first(admin_client: Client) -> None:
    for number in range(60):
        expires = PAST if number == 59 else SOON
        SubscriberHeartbeatFactory(**PLACE, subscriber=f"s{number:02}", expires_at=expires, activity="handling 3")
    [first, *rest], _ = through(admin_client, "subscriberheartbeat")
    assert first.startswith("s59 ")
    assert rest[0].startswith("s00 ")
    assert "handling 3" in first


def test_offsets_in_order(admin_client: Client) -> None:
    OffsetFactory.insert(130, **PLACE, partition=Iterator(range(130)))
    pages = through(admin_client, "offset")
    assert [int(re.search(r"orders (\d+)", row)[1]) for some in pages for row in some] == list(range(130))


def test_delivery_states_say_how_each_is(admin_client: Client) -> None:
    DeliveryStateFactory(**PLACE, message_offset=1, acked=True)
    DeliveryStateFactory(**PLACE, message_offset=2, in_flight=1, retry_count=1)
    DeliveryStateFactory(**PLACE, message_offset=3, retry_count=2, last_error="Traceback\n  x\nValueError: <b>")
    DeliveryStateFactory(**PLACE, message_offset=4)
    [found] = through(admin_client, "deliverystate")
    assert [re.search("acked|in flight|failing|waits", row)[0] for row in found] == [
        "waits",
        "failing",
        "in flight",
        "acked",
    ]
    assert "ValueError: &lt;b&gt;" in found[1]


@pytest.mark.parametrize(
    ("mark", "shown"),
    [(0, "no"), (1, "together"), (2, "alone"), (3, "alone, after the end of 2 consumer processes")],
)
def test_a_delivery_states_page_says_how_it_is_in_flight(admin_client: Client, mark: int, shown: str) -> None:
    row = DeliveryStateFactory(**PLACE, message_offset=7, in_flight=mark, last_error="ValueError: <b>")
    html = page(admin_client, f"/admin/sqlqueue/deliverystate/{row.pk}/change/")
    (field,) = re.findall(r'class="form-row field-in_flight_as">(.*?)<div class="form-row', html, re.DOTALL)
    assert words(field).endswith(f"In flight: {shown}")
    names = re.findall(r'class="form-row field-(\w+)"', html)
    assert {*names, "in_flight", "id"} == {*(each.name for each in DeliveryState._meta.fields), "in_flight_as"}
    assert "ValueError: &lt;b&gt;" in html


def test_what_waits_behind_a_key_is_listed_by_key(admin_client: Client) -> None:
    for number in range(60):
        BlockedRangeFactory(**PLACE, partition_key=f"key-{number:02}", low=number, messages=1_234)
    first, second = through(admin_client, "blockedrange")
    assert [re.search(r"key-(\d+)", row)[1] for row in first + second] == [f"{number:02}" for number in range(60)]
    assert second[0] == "key-50 mail orders 0 0 50 100 1234"


def test_receipts_are_found_by_offset(admin_client: Client) -> None:
    for offset in (7, 8, 8):
        ReceiptFactory(
            **PLACE,
            message_offset=offset,
            started_at=PAST,
            finished_at=PAST + timedelta(milliseconds=1_250),
            worker="w",
            serial=Receipt.objects.count(),
        )
    assert len(rows(page(admin_client, "/admin/sqlqueue/receipt/"))) == 3
    found = rows(page(admin_client, "/admin/sqlqueue/receipt/?q=8"))
    assert len(found) == 2
    assert "1.250" in found[0]


def test_collected_messages_are_found_by_offset_id_and_key(admin_client: Client) -> None:
    CollectedMessageFactory(message_offset=7, message_id="a", outcomes={"mails": {"outcome": "dead", "attempts": 3}})
    CollectedMessageFactory(message_offset=8, message_id="7", partition_key="ann")
    CollectedMessageFactory(message_offset=9, message_id="c", partition_key="7")
    assert len(rows(page(admin_client, "/admin/sqlqueue/collectedmessage/"))) == 3
    for term, offsets in {"a": [7], "7": [9, 8, 7], "ann": [8], "an": [], "99999999999999999999": []}.items():
        found = rows(page(admin_client, f"/admin/sqlqueue/collectedmessage/?q={term}"))
        assert [int(row.split()[0]) for row in found] == offsets, term
    (found_row,) = rows(page(admin_client, "/admin/sqlqueue/collectedmessage/?q=a"))
    assert "mails: dead" in found_row
    row = CollectedMessage.objects.get(message_id="a")
    assert "attempts" in page(admin_client, f"/admin/sqlqueue/collectedmessage/{row.pk}/change/")


def test_of_many_collected_messages_of_a_key_some_are_found(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    CollectedMessageFactory.create_batch(5, partition_key="ann")
    monkeypatch.setattr(tables, "MOST_FOUND", 3)
    html = page(admin_client, "/admin/sqlqueue/collectedmessage/?q=ann")
    assert len(rows(html)) == 3
    assert "the newest 3" in html


@pytest.mark.parametrize("model", READ_ONLY)
def test_nothing_is_counted_and_no_page_needs_many_statements(admin_client: Client, model: str) -> None:
    with CaptureQueriesContext(connection) as seen:
        page(admin_client, f"/admin/sqlqueue/{model}/")
    assert not [query["sql"] for query in seen if "COUNT(" in query["sql"] and "sqlqueue_" in query["sql"]]
    assert len(seen) <= 8


@pytest.mark.parametrize("model", [*READ_ONLY, "consumergroup", "topic", "overview"])
def test_users_without_the_permission_do_not_see_it_and_no_user_edits(
    staff: Callable[..., Client], admin_client: Client, model: str
) -> None:
    where = f"/admin/sqlqueue/{model}/"
    assert "/login/" in Client().get(where)["Location"]
    assert staff("view_message").get(where).status_code == 403
    assert staff(f"view_{model}").get(where).status_code == 200
    for address in (f"{where}add/", f"{where}1/delete/"):
        for send in (admin_client.get, admin_client.post):
            assert send(address).status_code in (302, 403, 404)  # 302: there is no such row


@pytest.mark.parametrize(
    "wrong", ["x", "[]", "[0]", '["a", 1]', "[0, 1, 2, 3, 4, 5]", '[0, "x", "y"]', "[9, 1, 1]", "{}"]
)
@pytest.mark.parametrize("model", ["scheduledmessage", "partitionlease"])
def test_a_made_up_page_is_no_error(admin_client: Client, model: str, wrong: str) -> None:
    assert admin_client.get(f"/admin/sqlqueue/{model}/", {"from": wrong}).status_code == 200
