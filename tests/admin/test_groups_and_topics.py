"""What may be done with topics and groups: by whom, how, and what is noted of it."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.utils import timezone

from sqlqueue import Delivery, NewMessage, publish_many
from sqlqueue.admin import consumer_groups
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup, Message, Offset, Topic
from tests.admin.operating import operate, operation
from tests.admin.test_overview import page, words
from tests.consuming import Consuming
from tests.logs import LOG

pytestmark = pytest.mark.once

COUNT = 40


@pytest.fixture
def group(consuming: Consuming) -> ConsumerGroup:
    """The group "mail", which has read all of COUNT messages of "orders"."""
    consuming.consumer("orders", lambda delivery: None, group="mail")
    publish_many("orders", [NewMessage(number, key=str(number)) for number in range(COUNT)])
    consuming.drain()
    return ConsumerGroup.objects.get()


def address(row: object, name: str) -> str:
    if name != "change":
        return operation(row._meta.model_name, name, row.pk)
    return f"/admin/sqlqueue/{row._meta.model_name}/{row.pk}/change/"


def offsets() -> list[int]:
    return list(Message.objects.order_by("offset").values_list("offset", flat=True))


def read_again(consuming: Consuming) -> list[object]:
    """Let the group read on; return the payloads that it is given."""
    consuming.end()
    again = Consuming()
    seen: list[object] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)

    again.consumer("orders", handle, group="mail")
    try:
        again.drain()
    finally:
        again.end()
    return sorted(seen)


@pytest.mark.parametrize("kind", ["topic", "consumergroup"])
def test_pausing_is_noted(group: ConsumerGroup, staff: Callable[..., Client], kind: str) -> None:
    row = group if kind == "consumergroup" else Topic.objects.get(name="orders")
    may = staff(f"view_{kind}", f"pause_{kind}")
    assert may.post(address(row, "pause"))["Location"] == address(row, "change")
    row.refresh_from_db()
    assert row.paused
    assert [(entry.object_repr, entry.change_message) for entry in LogEntry.objects.all()] == [
        (str(row), f"{row}: paused. Running handlers finish.")
    ]
    assert "paused. Running handlers finish" in page(may, address(row, "change"))
    assert may.post(address(row, "pause")).status_code == 302
    assert LogEntry.objects.count() == 1
    may.post(address(row, "resume"))
    row.refresh_from_db()
    assert not row.paused
    assert LogEntry.objects.count() == 2


def test_many_are_paused_at_once(group: ConsumerGroup, staff: Callable[..., Client]) -> None:
    register(LOG, "other", "orders")
    keys = list(ConsumerGroup.objects.values_list("pk", flat=True))
    data = {"action": "pause", "_selected_action": keys}
    listed = "/admin/sqlqueue/consumergroup/"
    staff("view_consumergroup").post(listed, data)
    assert not ConsumerGroup.objects.filter(paused=True).exists()
    staff("view_consumergroup", "pause_consumergroup").post(listed, data)
    assert not ConsumerGroup.objects.filter(paused=False).exists()
    assert LogEntry.objects.count() == 2


def test_a_move_to_an_end_of_the_calendar(group: ConsumerGroup, staff: Callable[..., Client]) -> None:
    client = staff("view_consumergroup", "replay_consumergroup")
    for time, again in (("0001-01-01T00:00", COUNT), ("9999-12-31T23:59", 0)):
        html = page(client, address(group, "move") + f"?count=1&partition=&offset=&time={time}")
        assert f"{again} messages would be delivered again." in words(html)


def test_a_rewind_is_counted_first_and_then_done(
    group: ConsumerGroup, consuming: Consuming, staff: Callable[..., Client]
) -> None:
    client = staff("view_consumergroup", "replay_consumergroup")
    first = offsets()[10]
    html = page(client, address(group, "move") + f"?count=1&partition=&offset={first}&time=")
    assert f"{COUNT - 10} messages would be delivered again." in words(html)
    assert "0 messages would be skipped." in words(html)
    assert Offset.objects.order_by("position").first().position > 0
    [button] = re.findall(r'<form method="post".*?</form>', html[html.index("preview-heading") :], re.DOTALL)
    data = dict(re.findall(r'name="(\w+)" value="([^"]*)"', button))
    answer = client.post(address(group, "move"), data)
    assert answer["Location"] == address(group, "change")
    [entry] = LogEntry.objects.all()
    assert entry.change_message == f"Moved to offset {first - 1} in all partitions."
    assert read_again(consuming) == list(range(10, COUNT))


def test_one_partition_is_rewound(group: ConsumerGroup, consuming: Consuming, staff: Callable[..., Client]) -> None:
    client = staff("view_consumergroup", "replay_consumergroup")
    client.post(address(group, "move"), {"partition": "1", "offset": "0", "confirmed": "1"})
    assert read_again(consuming) == sorted(Message.objects.filter(partition=1).values_list("payload", flat=True))


def test_a_rewind_to_a_time(group: ConsumerGroup, consuming: Consuming, staff: Callable[..., Client]) -> None:
    moment = timezone.now() - timedelta(days=2)
    Message.objects.filter(offset__lt=offsets()[25]).update(created_at=moment - timedelta(hours=1))
    Message.objects.filter(offset__gte=offsets()[25]).update(created_at=moment)
    client = staff("view_consumergroup", "replay_consumergroup")
    asked = moment.strftime("%Y-%m-%dT%H:%M")
    assert "15 messages would be delivered again." in words(
        page(client, address(group, "move") + f"?count=1&time={asked}")
    )
    client.post(address(group, "move"), {"time": asked, "confirmed": "1"})
    assert read_again(consuming) == list(range(25, COUNT))


def test_a_group_that_is_behind_may_skip(consuming: Consuming, staff: Callable[..., Client]) -> None:
    register(LOG, "mail", "orders")
    publish_many("orders", range(COUNT))
    client = staff("view_consumergroup", "replay_consumergroup")
    where = address(ConsumerGroup.objects.get(), "move")
    first = offsets()[30]
    assert "30 messages would be skipped." in words(page(client, f"{where}?count=1&offset={first}"))
    client.post(where, {"offset": first, "confirmed": "1"})
    assert len(read_again(consuming)) == 10


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({}, "Give either an offset or a time."),
        ({"offset": "1", "time": "2026-01-01T00:00"}, "Give either an offset or a time."),
        ({"offset": "1", "partition": "4"}, "0 to 3"),
        ({"offset": "-1"}, "greater than or equal to 0"),
        ({"offset": str(2**63)}, "less than or equal to"),
        ({"time": "yesterday"}, "Enter a valid date/time"),
    ],
)
def test_what_makes_no_sense_is_refused(
    group: ConsumerGroup, staff: Callable[..., Client], asked: dict[str, str], refusal: str
) -> None:
    client = staff("view_consumergroup", "replay_consumergroup")
    before = list(Offset.objects.order_by("id").values_list("position", flat=True))
    answer = client.post(address(group, "move"), {**asked, "confirmed": "1"})
    assert answer.status_code == 200
    assert refusal in answer.content.decode()
    assert list(Offset.objects.order_by("id").values_list("position", flat=True)) == before
    assert not LogEntry.objects.exists()


def test_a_move_works_where_every_request_is_a_transaction(
    group: ConsumerGroup, staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    client = staff("view_consumergroup", "replay_consumergroup")
    answer = client.post(address(group, "move"), {"offset": "0", "confirmed": "1"}, follow=True)
    assert "Moved to offset 0 in all partitions." in answer.content.decode()


def test_a_group_is_removed_after_it_was_said_what_that_means(
    group: ConsumerGroup, staff: Callable[..., Client]
) -> None:
    client = staff("view_consumergroup", "delete_consumergroup")
    text = words(page(client, address(group, "remove")))
    assert "0 messages that it has not settled are never delivered to it." in text
    assert "Collection no longer waits for it" in text
    assert ConsumerGroup.objects.exists()
    assert operate(client, address(group, "remove")).status_code == 200
    assert not ConsumerGroup.objects.exists()
    assert not Offset.objects.exists()
    [entry] = LogEntry.objects.all()
    assert (entry.object_repr, entry.is_deletion()) == ("mail of orders", True)


def test_those_who_serve_a_group_are_told_before_it_is_removed(
    group: ConsumerGroup, consuming: Consuming, staff: Callable[..., Client]
) -> None:
    consuming.start()
    assert "1 subscriber serves it now. Stop it first." in words(
        page(staff("view_consumergroup", "delete_consumergroup"), address(group, "remove"))
    )


def test_a_groups_partitions_are_shown(group: ConsumerGroup, staff: Callable[..., Client]) -> None:
    publish_many("orders", [NewMessage(number, key="one key") for number in range(7)])
    html = page(staff("view_consumergroup"), address(group, "change"))
    rows = re.findall(r'<tr>\s*<th scope="row">(.*?)</th>.*?data-label="Lag">(.*?)</td>', html, re.DOTALL)
    assert [words(lag) for _, lag in rows] == ["7", "0", "0", "0"]
    assert html.count("none</strong>") == 4


def test_the_page_says_how_many_partitions_it_does_not_show(
    group: ConsumerGroup, staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = staff("view_consumergroup")
    for most, said in ((4, ""), (3, "1 more partition is not shown."), (1, "3 more partitions are not shown.")):
        monkeypatch.setattr(consumer_groups, "MOST_PARTITIONS", most)
        html = page(client, address(group, "change"))
        assert html.count("none</strong>") == most
        assert said in words(html)
        assert ("not shown" in words(html)) == bool(said)


@pytest.mark.parametrize("name", ["change", "move", "remove", "pause"])
def test_what_is_not_there_is_not_found(group: ConsumerGroup, admin_client: Client, name: str) -> None:
    send = admin_client.post if name == "pause" else admin_client.get
    for key in ("99999999", "x"):
        where = "change" if name == "change" else f"operation/{name}"
        assert send(f"/admin/sqlqueue/consumergroup/{key}/{where}/").status_code == 404
