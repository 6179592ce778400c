"""The lists show what is looked for: how groups stand, what messages hold and became of, and when they are due."""

import re
from datetime import datetime, timezone

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sqlqueue import publish
from sqlqueue.log.groups import register
from sqlqueue.models import Message, ScheduledMessage, Topic
from sqlqueue.operations.topics import pause
from tests.admin.stage import EVIL, Stage
from tests.admin.test_lists import rows
from tests.admin.test_overview import page, words
from tests.consuming import Consuming
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
LISTS = "/admin/sqlqueue/"


def cells(html: str, name: str) -> list[str]:
    """Return the text of a list's column."""
    found = re.findall(rf'<t[dh][^>]* class="field-{name}[^"]*">(.*?)</t[dh]>', html, re.DOTALL)
    return [words(cell) for cell in found]


def test_groups_are_listed_with_unusual_states(stage: Stage, admin_client: Client) -> None:
    register(LOG, "slow", "t")
    pause(LOG, "t", "slow")
    html = page(admin_client, f"{LISTS}consumergroup/")
    assert cells(html, "consumer_group") == ["audit", "g", "slow"]
    assert cells(html, "state") == ["–", "–", "paused"]
    assert "icon-no" not in html


def test_topics_are_listed_in_words_and_what_is_well_has_no_cross(consuming: Consuming, admin_client: Client) -> None:
    for name, retention in (("a", 7 * 86_400), ("b", 90), ("c", None), ("d", 5_400)):
        Topic.objects.create(name=name, partitions=2, retention=retention, paused=name == "b")
    html = page(admin_client, f"{LISTS}topic/")
    assert cells(html, "kept") == ["7 d", "1 min 30 s", "for ever", "1 h 30 min"]
    assert cells(html, "state") == ["–", "paused", "–", "–"]
    assert "icon-no" not in html


def test_messages_are_listed_with_their_payload_and_what_became_of_them(stage: Stage, admin_client: Client) -> None:
    html = page(admin_client, f"{LISTS}message/?topic=t")
    by_offset = dict(zip(map(int, cells(html, "offset")), zip(cells(html, "preview"), cells(html, "outcomes"))))
    preview, outcome = by_offset[stage.good[3]]
    assert preview.replace(" ", "") == "{&quot;n&quot;:3}"
    assert outcome == "audit: acknowledged g: acknowledged"
    preview, outcome = by_offset[stage.failing]
    assert "&lt;script&gt;" in preview
    assert re.fullmatch(r"audit: acknowledged g: failing, waits for its next attempt", outcome)
    assert "g: dead letter" in by_offset[stage.died[0]][1]
    assert EVIL not in html
    letters = page(admin_client, f"{LISTS}message/?topic=t_dlq")
    assert all(text.startswith("dead letter of g: no way") for text in cells(letters, "outcomes"))


def test_a_heavy_payload_stays_in_the_server(consuming: Consuming, admin_client: Client) -> None:
    publish("t", "x" * 100_000, key="k" * 190, id="i" * 190)
    ScheduledMessage.objects.create(topic="t", payload="y" * 100_000)
    html = page(admin_client, f"{LISTS}message/")
    assert cells(html, "preview") == ["&quot;" + "x" * 98 + "…"]
    assert cells(html, "key_and_id") == ["k" * 23 + "… " + "i" * 23 + "…"]
    assert "x" * 110 not in html
    assert cells(page(admin_client, f"{LISTS}scheduledmessage/"), "preview") == ["&quot;" + "y" * 98 + "…"]


def test_scheduled_messages_are_listed_with_their_payload_and_when_they_are_due(
    consuming: Consuming, admin_client: Client
) -> None:
    at = datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
    ScheduledMessage.objects.create(
        topic="t", payload={"to": EVIL}, due_at=at, partition_key="k", message_id="i", target_group="mail"
    )
    [row] = rows(page(admin_client, f"{LISTS}scheduledmessage/"))
    assert "2031-05-06 07:08:09 UTC" in row
    assert "&lt;script&gt;" in row
    assert row.endswith(" k i for mail alone")


def test_the_number_of_statements_does_not_grow_with_the_rows(stage: Stage, admin_client: Client) -> None:
    def statements(address: str) -> int:
        with CaptureQueriesContext(connection) as seen:
            page(admin_client, f"{LISTS}{address}")
        return len(seen)

    addresses = ("message/", "message/?topic=t", "consumergroup/", "scheduledmessage/")
    publish("t", "later", delay=60)
    register(LOG, "another", "t")
    before = [statements(address) for address in addresses]
    for number in range(20):
        publish("t", number, key=str(number))
        publish("t", number, key=str(number), delay=60)
        register(LOG, f"group-{number}", "t")
    assert [statements(address) for address in addresses] == before
    assert max(before) <= 25
    assert Message.objects.count() > 30
