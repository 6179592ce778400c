"""What operators see and do of messages that wait for their way to another shard."""

import html
import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client
from django.urls import reverse

from sqlqueue import InvalidMessage, publish
from sqlqueue.core.shards import shard_of
from sqlqueue.log import relay_moves
from sqlqueue.models import Message, RelayedMessage
from sqlqueue.monitoring import diagnostics, doctor, responses
from sqlqueue.operations import relayed
from sqlqueue.stats import attention, finding_kinds
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.survey import survey
from tests.admin.test_lists import rows
from tests.shards.aliases import A, B

KEY = next(name for name in (f"key-{number}" for number in range(60)) if shard_of(name, "ab") == "b")


@pytest.fixture(autouse=True)
def refused(shards: dict[str, Any]) -> RelayedMessage:
    """Three messages that wait on a for b, of which b has refused one."""
    recent_survey.forget()
    with transaction.atomic(using=A):
        for id in ("one", "two", "three"):
            publish("t", {"n": id}, key=KEY, id=id, relay=True)
        publish("t", b"\x00bytes", key=KEY, id="bytes", content_type="image/png", relay=True)
    RelayedMessage.objects.using(A).filter(message_id="two").update(priority=7)
    held = {"one", "three", "bytes"}
    RelayedMessage.objects.using(A).filter(message_id__in=held).update(shard="c")
    relay_moves.move(A, "b")
    RelayedMessage.objects.using(A).filter(shard="c").update(shard="b")
    return RelayedMessage.objects.using(A).get(refused=True)


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("ann"))
    return client


def staff(*codenames: str) -> Client:
    user = User.objects.create_user("-".join(codenames), is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def address(row: RelayedMessage) -> str:
    return reverse("admin:sqlqueue_relayedmessage_change", args=[row.pk])


def action(name: str, *chosen: RelayedMessage) -> tuple[str, dict[str, Any]]:
    ticked = {"_selected_action": [row.pk for row in chosen], "confirmed": "1"}
    return reverse("admin:sqlqueue_relayedmessage_action", args=[name]), ticked


def text(client: Client, url: str) -> str:
    return html.unescape(client.get(url).content.decode())


def command(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out, stderr=StringIO())
    return out.getvalue()


def arrived() -> list[str]:
    while relay_moves.move(A, "b").more:
        pass
    return list(Message.objects.using(B).order_by("offset").values_list("message_id", flat=True))


def test_the_list_shows_refused_ones_first_with_the_reason(admin: Client) -> None:
    listed = rows(admin.get(reverse("admin:sqlqueue_relayedmessage_changelist")).content.decode())
    assert len(listed) == 4
    assert "refused priority 7 is not one of topic" in listed[0]
    assert ["waits" in row for row in listed] == [False, True, True, True]
    assert "image/png" in listed[3]


def test_a_person_corrects_one(admin: Client, refused: RelayedMessage) -> None:
    page = admin.get(address(refused))
    assert "The log has refused this message: priority 7" in html.unescape(page.content.decode())
    values = {field.name: field.value() for field in page.context["form"]}
    assert "at" not in values
    again = html.unescape(admin.post(address(refused), values | {"priority": "8"}).content.decode())
    assert "priority 8 is not one of topic 't'" in again
    saved = admin.post(address(refused), values | {"priority": "0"}, follow=True).content.decode()
    assert "Changed: Priority." in saved
    assert LogEntry.objects.get().change_message == "Changed: Priority."
    assert "two" in arrived()


def test_its_bytes_are_saved_as_a_file(admin: Client) -> None:
    row = RelayedMessage.objects.using(A).get(message_id="bytes")
    assert "image/png" in text(admin, address(row))
    saved = admin.get(reverse("admin:sqlqueue_relayedmessage_body", args=[row.pk]))
    assert saved.content == b"\x00bytes"
    assert ".png" in saved["Content-Disposition"]


def test_one_is_tried_again_and_others_are_discarded(admin: Client, refused: RelayedMessage) -> None:
    RelayedMessage.objects.using(A).filter(pk=refused.pk).update(priority=0)
    done = html.unescape(admin.post(*action("relay-again", refused), follow=True).content.decode())
    assert "Tried again: 1. Left alone, because they were not refused: 0." in done
    third = RelayedMessage.objects.using(A).get(message_id="three")
    done = html.unescape(admin.post(*action("discard", third), follow=True).content.decode())
    assert "Discarded: 1. Left alone, because they have arrived: 0." in done
    assert arrived() == ["one", "two", "bytes"]
    assert LogEntry.objects.count() == 2
    gone = html.unescape(admin.get(address(third), follow=True).content.decode())
    assert "does not wait any more: it has arrived at its shard, or was discarded" in gone


def test_nobody_sees_or_does_what_they_may_not(refused: RelayedMessage) -> None:
    before = list(RelayedMessage.objects.using(A).values())
    other = staff("view_message")
    assert other.get(reverse("admin:sqlqueue_relayedmessage_changelist")).status_code == 403
    assert other.get(address(refused)).status_code == 403
    assert other.get(reverse("admin:sqlqueue_relayedmessage_body", args=[refused.pk])).status_code == 403
    viewer = staff("view_relayedmessage")
    assert "Relayed message" in text(viewer, address(refused))
    assert viewer.post(address(refused), {"priority": "0"}).status_code == 403
    for name in ("relay-again", "discard"):
        assert viewer.post(*action(name, refused)).status_code == 403
    for granted, name in (("change_relayedmessage", "relay-again"), ("delete_relayedmessage", "discard")):
        assert staff(granted).post(*action(name, refused)).status_code == 403  # it may not see them
    assert list(RelayedMessage.objects.using(A).values()) == before


def test_without_shards_there_is_no_such_page(admin: Client, settings: Any) -> None:
    assert "Relayed messages" in text(admin, reverse("admin:index"))
    settings.SQLQUEUE = {name: value for name, value in settings.SQLQUEUE.items() if name != "SHARDS"}
    assert "Relayed messages" not in text(admin, reverse("admin:index"))
    assert admin.get(reverse("admin:sqlqueue_relayedmessage_changelist")).status_code == 403
    assert survey(A).relays == ()


def test_the_survey_counts_them_and_says_what_to_do(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    [relay] = survey(A).relays
    assert (relay.shard, relay.waiting, relay.refused) == ("b", 3, 1)
    assert 0 <= relay.age < 60
    assert survey(B).relays[0].waiting == 0
    monkeypatch.setattr(attention, "RELAYED_TOO_LATE", -1.0)
    found = {one.kind: one for one in attention.findings(survey(A))}
    assert found[finding_kinds.RELAY_REFUSED].text == "1 relayed message was refused by shard b."
    assert "3 messages have waited for their way to shard b" in found[finding_kinds.RELAY_LATE].text
    overview = text(admin, reverse("admin:sqlqueue_overview_changelist"))
    assert "1 relayed message was refused by shard b." in overview
    assert f'href="{reverse("admin:sqlqueue_relayedmessage_changelist")}"' in overview
    assert responses.health(detailed=True).body["shards"]["a"]["attention"][0]["kind"].startswith("relay")


def test_the_doctor_tells_why() -> None:
    told = [str(one) for one in doctor.examine(diagnostics.read(A, [])) if one.about == "relayed messages"]
    assert len(told) == 2
    assert "1 relayed message was refused by shard b" in told[0]
    assert "was refused: priority 7 is not one of topic 't'" in told[1]
    [well] = [one for one in doctor.examine(diagnostics.read(B, [])) if one.about == "relayed messages"]
    assert well.level == doctor.OK


def test_gauges_name_both_shards() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from sqlqueue.monitoring.gauges import StatsCollector

    metrics = CollectorRegistry()
    metrics.register(StatsCollector())
    told = generate_latest(metrics).decode()
    assert 'sqlqueue_relayed_messages{shard="a",to="b"} 3.0' in told
    assert 'sqlqueue_relay_refused_messages{shard="a",to="b"} 1.0' in told
    assert 'sqlqueue_relay_age_seconds{shard="b",to="a"} 0.0' in told


def test_a_command_lists_them_and_tries_them_again(refused: RelayedMessage) -> None:
    shown = command("queuereschedule", "relayed")
    assert shown.index("refused: priority 7") < shown.index("waits")
    assert shown.index("shard b\n") < shown.index("No message waits for its way to another shard.")
    with pytest.raises(CommandError, match="say on which shard with --shard: a, b"):
        command("queuereschedule", "relay", "--all")
    for words in ((), (str(refused.pk), "--all")):
        with pytest.raises(CommandError, match="say which: the numbers"):
            command("queuereschedule", "relay", *words, "--shard", "a")
    RelayedMessage.objects.using(A).filter(pk=refused.pk).update(priority=0)
    assert "1 are tried again.\n1 were left" in command(
        "queuereschedule", "relay", str(refused.pk), "7", "--shard", "a"
    )
    assert "two" in arrived()
    assert "0 are tried again." in command("queuereschedule", "relay", "--all", "--shard", "a")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"headers": {"sqlqueue-batch": "x"}}, "which is for the queue's own"),
        ({"topic": "tasks.default"}, "topics that begin with 'tasks.' hold tasks"),
    ],
)
def test_a_correction_is_refused_what_publish_would_refuse(
    refused: RelayedMessage, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidMessage, match=told):
        relayed.edit(A, refused.pk, **changes)
    kept = RelayedMessage.objects.using(A).get(pk=refused.pk)
    assert (kept.topic, kept.headers, kept.refused) == ("t", None, True)


def test_a_correction_keeps_the_headers_that_the_queue_has_added(refused: RelayedMessage) -> None:
    row = RelayedMessage.objects.using(A).get(message_id="bytes")
    relayed.edit(A, row.pk, headers={"a": 1})
    row.refresh_from_db()
    assert json.loads(row.headers) == {"a": 1, "sqlqueue-content-type": "image/png"}
