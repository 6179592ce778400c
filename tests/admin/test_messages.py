"""Messages in the admin: found, shown, and acted on."""

import json
import re
from datetime import timedelta
from time import sleep
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from sqlqueue import Delivery, NewMessage, publish, publish_many
from sqlqueue.admin import messages
from sqlqueue.admin import operation as operations
from sqlqueue.core.outcomes import ACKED
from sqlqueue.log.groups import register
from sqlqueue.log.schedule import move_due
from sqlqueue.models import DeliveryState, Message, Progress, Receipt, Result
from sqlqueue.operations.replay import replay
from sqlqueue.stats import search
from sqlqueue.stats.group_status import RETRYING, status
from sqlqueue.stats.texts import moment
from tests.admin.operating import offsets, operation, through
from tests.admin.stage import EVIL, Stage
from tests.consuming import Consuming
from tests.factories import ReceiptFactory
from tests.logs import LOG
from tests.processes import wait_until

LIST = "admin:sqlqueue_message_changelist"


def look(client: Client, **wanted: object) -> str:
    response = client.get(reverse(LIST), wanted)
    assert response.status_code == 200
    return response.content.decode()


def address(offset: int) -> str:
    return reverse("admin:sqlqueue_message_change", args=[offset])


def page(client: Client, offset: int) -> str:
    response = client.get(address(offset))
    assert response.status_code == 200
    return response.content.decode()


def test_the_page_of_a_scheduled_message_has_its_times(admin_client: Client, consuming: Consuming) -> None:
    due = timezone.now() - timedelta(hours=5)
    publish("t", 1, at=due)
    sleep(0.002)  # the page shows milliseconds
    move_due(LOG)
    plain, scheduled = publish("t", 2).offset, Message.objects.get(payload=1).offset
    found = re.findall(
        r'<th scope="row">(Published|Due|Entered the log)</th><td>(.*?)</td>', page(admin_client, scheduled)
    )
    assert [name for name, _ in found] == ["Published", "Due", "Entered the log"]
    times = dict(found)
    assert times["Due"] == moment(due, True)
    assert times["Published"] != times["Entered the log"] != times["Due"]
    assert plain
    assert "Entered the log" not in page(admin_client, plain)


def give(client: Client, name: str, chosen: list[int], **wanted: object) -> str:
    """Order something, through its form; return the page that follows."""
    address = operation("message", name)
    asked = client.post(address, {"_selected_action": chosen})
    assert asked.status_code == 200
    assert offsets(asked.content.decode()) == sorted(chosen, reverse=True)
    assert not LogEntry.objects.exists()  # nothing is done before it is confirmed
    done = client.post(address, {"_selected_action": chosen, "confirmed": "1", **wanted}, follow=True)
    assert done.redirect_chain, re.findall(r'class="error.*?</', done.content.decode(), re.DOTALL)
    return done.content.decode()


def test_an_id_that_more_keys_have_than_a_page_shows(admin_client: Client) -> None:
    publish_many("mails", [NewMessage(1, key=f"customer {number}", id="welcome") for number in range(60)])
    page = look(admin_client, topic="mails", message_id="welcome")
    assert len(offsets(page)) == 50
    assert "More than 50 messages have this id" in page
    page = look(admin_client, topic="mails", message_id="welcome", key="customer 59")
    assert len(offsets(page)) == 1
    assert "More than" not in page


def test_a_message_is_found_in_every_way(admin_client: Client, stage: Stage) -> None:
    good = stage.good[::-1]
    assert set(good) < set(offsets(look(admin_client)))
    assert offsets(look(admin_client, topic="t"))[-10:] == good
    assert offsets(look(admin_client, topic="t", key="good")) == good
    assert offsets(look(admin_client, topic="t", message_id="good-3")) == [stage.good[3]]
    assert offsets(look(admin_client, topic="t", key="good", message_id="good-3")) == [stage.good[3]]
    assert offsets(look(admin_client, topic="t", key="other", message_id="good-3")) == []
    assert offsets(look(admin_client, offset=stage.good[4])) == [stage.good[4]]
    assert offsets(look(admin_client, topic="t_dlq")) == stage.dead_letters[::-1]
    assert offsets(look(admin_client, topic="t_dlq", key="bad")) == stage.dead_letters[::-1]
    for nothing in ({"topic": "t", "key": "goo"}, {"topic": "t_dlq", "offset": stage.good[0]}, {"offset": 10**12}):
        assert offsets(look(admin_client, **nothing)) == []


def test_a_message_is_found_by_its_time(admin_client: Client, consuming: Consuming) -> None:
    early, late = ([publish("t", n).offset for n in range(5)] for _ in range(2))
    now = timezone.now()
    Message.objects.filter(offset__in=early).update(created_at=now - timedelta(hours=2))
    between = (now - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    for topic in ("", "t"):
        assert offsets(look(admin_client, topic=topic, since=between)) == late[::-1]
        assert offsets(look(admin_client, topic=topic, until=between)) == early[::-1]


def test_a_key_or_an_id_needs_a_topic(admin_client: Client, stage: Stage) -> None:
    for wanted in ({"key": "good"}, {"message_id": "good-1"}, {"offset": "x"}, {"since": "soon"}, {"topic": "no"}):
        html = look(admin_client, **wanted)
        assert "errorlist" in html
        assert offsets(html) == []


def test_a_topic_is_paged(admin_client: Client, consuming: Consuming) -> None:
    publish_many("t", [NewMessage(n, key=str(n % 9)) for n in range(130)])
    publish_many("other", range(60))
    every = list(Message.objects.filter(topic="t").order_by("-offset").values_list("offset", flat=True))
    pages = through(admin_client, reverse(LIST) + "?topic=t")
    assert [offset for page in pages for offset in offsets(page)] == every


def test_a_key_is_searched_in_steps(admin_client: Client, consuming: Consuming, monkeypatch: Any) -> None:
    monkeypatch.setattr(search, "SCANNED_AT_ONCE", 10)
    rare = publish("t", "rare", key="a").offset
    publish_many("t", [NewMessage(n, key="same" if n % 7 == 0 else "a") for n in range(100)])
    expected = list(Message.objects.filter(partition_key="a").order_by("-offset").values_list("offset", flat=True))
    partition = Message.objects.get(offset=rare).partition
    Message.objects.update(partition=partition)
    found, html, pages = [], look(admin_client, topic="t", key="a"), 0
    while True:
        found += offsets(html)
        pages += 1
        onward = re.search(r"<a href=\"\?([^\"]*)\">Search on</a>", html)
        if onward is None:
            break
        html = admin_client.get(f"{reverse(LIST)}?{onward[1]}".replace("&amp;", "&")).content.decode()
    assert found == expected
    assert pages == 3  # 101 messages, 4 steps of 10 a page


def test_a_page_tells_what_became_of_a_message_in_every_group(admin_client: Client, stage: Stage) -> None:
    html = page(admin_client, stage.failing)
    assert "failing, waits for its next attempt" in html
    assert "acknowledged" in html  # the other group's
    assert "later &lt;script&gt;" in html
    assert "retried" in html or "retry" in html  # the receipt
    letter = page(admin_client, stage.dead_letters[0])
    assert f'/{stage.died[0]}/change/"' in letter
    assert f'/{stage.dead_letters[0]}/change/"' in page(admin_client, stage.died[0])


def test_the_pages_of_a_replayed_message_lead_to_each_other(admin_client: Client, stage: Stage) -> None:
    original, letter = stage.died[0], stage.dead_letters[0]
    stage.mend()
    replay("t", group="g")
    stage.consuming.drain()
    copy = Message.objects.get(message_id=f"replay:{letter}").offset
    assert f'<a href="{address(copy)}">replayed</a> (replay:{letter}: acknowledged)' in page(admin_client, original)
    assert f'<a href="{address(original)}">{original}</a>' in page(admin_client, copy)
    assert address(copy) not in page(admin_client, stage.good[0])
    gone = admin_client.get(address(letter))
    assert (gone.status_code, gone["Location"]) == (302, address(original))
    Receipt.objects.all().delete()
    assert address(original) not in page(admin_client, copy)
    assert admin_client.get(address(letter))["Location"] == reverse("admin:index")


def test_a_page_says_what_it_does_not_show(admin_client: Client, stage: Stage, monkeypatch: Any) -> None:
    ReceiptFactory.create_batch(3, consumer_group="audit", message_offset=stage.failing)
    count = Receipt.objects.filter(message_offset=stage.failing).count()
    monkeypatch.setattr(messages, "MOST_RECEIPTS", count)
    assert "more</a>" not in page(admin_client, stage.failing)
    monkeypatch.setattr(messages, "MOST_RECEIPTS", 1)
    monkeypatch.setattr(messages, "MOST_SHOWN", 20)
    html = page(admin_client, stage.failing)
    address = f"{reverse('admin:sqlqueue_receipt_changelist')}?q={stage.failing}"
    assert f'<a href="{address}">and {count - 1} more</a>' in html
    assert len(offsets_of_receipts(admin_client.get(address).content.decode())) == count
    payload = json.dumps({"fail": EVIL}, indent=2)
    assert escape(payload[:20] + "\n…") in html


def offsets_of_receipts(html: str) -> list[str]:
    return re.findall(r'class="field-message_offset.*?(\d+)', html)


def test_an_action_lists_some_rows_and_is_about_all(admin_client: Client, stage: Stage, monkeypatch: Any) -> None:
    monkeypatch.setattr(operations, "MOST_LISTED", 3)
    address = operation("message", "republish")
    html = admin_client.post(address, {"_selected_action": stage.good}).content.decode()
    assert "and 7 more" in html
    assert offsets(html) == sorted(stage.good, reverse=True)
    before = Message.objects.count()
    give(admin_client, "republish", stage.good, group="g", delay="0")
    assert Message.objects.count() == before + 10


def test_more_rows_than_one_action_takes_are_refused_and_not_cut(
    admin_client: Client, stage: Stage, monkeypatch: Any
) -> None:
    monkeypatch.setattr(operations, "MOST_CHOSEN", 9)
    for confirmed in ({}, {"confirmed": "1", "group": "g", "delay": "0"}):
        answer = admin_client.post(operation("message", "republish"), {"_selected_action": stage.good, **confirmed})
        assert answer.status_code == 400
    assert not LogEntry.objects.exists()


def test_messages_are_delivered_again(admin_client: Client, stage: Stage) -> None:
    stage.mend()
    stage.seen.clear()
    html = give(admin_client, "republish", stage.good[:2], group="g", delay="0")
    assert "2 messages are delivered again" in html
    stage.consuming.drain()
    assert stage.seen == [{"n": 0}, {"n": 1}]
    assert LogEntry.objects.count() == 2
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(offset) for offset in stage.good[:2]}
    history = admin_client.get(reverse("admin:sqlqueue_message_history", args=[stage.good[0]])).content.decode()
    assert "delivered again" in history


def test_a_delivery_is_rescheduled(admin_client: Client, stage: Stage) -> None:
    stage.mend()
    html = give(admin_client, "reschedule", [stage.failing, stage.good[0]], group="g", delay="0", attempts="0")
    assert "due in 0 s: 1." in html
    stage.consuming.drain()
    assert stage.seen[-1] == {"fail": EVIL}
    assert LogEntry.objects.count() == 2


def test_a_delivery_gets_another_priority(admin_client: Client, consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {"priorities": 2}}}
    register(LOG, "g", "t")
    unread = publish("t", "urgent", priority=1).offset
    give(admin_client, "reschedule", [unread], group="g", delay="0", priority="0")
    copy = Message.objects.exclude(offset=unread).get()
    assert (copy.priority, copy.target_group, copy.payload) == (0, "g", "urgent")
    assert status(LOG, Message.objects.get(offset=unread), "g").state == ACKED or (
        DeliveryState.objects.get(message_offset=unread).acked
    )


def test_a_wrong_priority_changes_nothing(admin_client: Client, stage: Stage) -> None:
    before = Message.objects.count()
    for wanted in ({"priority": "7"}, {"priority": "-1"}, {"delay": "-1"}, {"group": "nobody"}, {"delay": "nan"}):
        for name in ("republish", "reschedule"):
            answer = admin_client.post(
                operation("message", name),
                {"_selected_action": [stage.failing], "confirmed": "1", "group": "g", "delay": "0", **wanted},
            )
            assert answer.status_code == 200, wanted
            assert "errorlist" in answer.content.decode() or "errornote" in answer.content.decode()
    assert Message.objects.count() == before
    assert status(LOG, Message.objects.get(offset=stage.failing), "g").state == RETRYING
    assert not LogEntry.objects.exists()


def test_a_delivery_is_acknowledged_on_behalf_of_its_group(admin_client: Client, stage: Stage) -> None:
    html = give(admin_client, "acknowledge", [stage.failing], group="g")
    assert "Acknowledged on behalf of the group g: 1." in html
    assert DeliveryState.objects.get(message_offset=stage.failing).acked


def test_messages_are_cancelled_for_all_groups(admin_client: Client, stage: Stage) -> None:
    unread = [publish("t", {"n": 99}, key="good").offset for _ in range(2)]
    html = give(admin_client, "cancel", [stage.failing, *unread])
    assert "5 deliveries will not take place" in html  # two groups for two, one for the one that fails
    stage.consuming.drain()
    assert {"n": 99} not in stage.seen


def test_the_list_offers_the_actions(admin_client: Client, stage: Stage) -> None:
    answer = admin_client.post(reverse(LIST), {"action": "cancel", "_selected_action": stage.good[:2], "index": "0"})
    html = answer.content.decode()
    assert offsets(html) == stage.good[:2][::-1]
    assert f'action="{operation("message", "cancel")}"' in html
    # No action is about everything that a filter shows, whatever the request says.
    answer = admin_client.post(
        reverse(LIST), {"action": "cancel", "_selected_action": stage.good[:1], "index": "0", "select_across": "1"}
    )
    assert offsets(answer.content.decode()) == stage.good[:1]


def test_what_is_gone_is_said(admin_client: Client, stage: Stage) -> None:
    assert admin_client.get(reverse("admin:sqlqueue_message_change", args=[10**12]), follow=True).redirect_chain
    assert admin_client.get(reverse("admin:sqlqueue_message_change", args=["x"]), follow=True).redirect_chain
    answer = admin_client.post(operation("message", "cancel"), {"_selected_action": ["x", 10**12]}, follow=True)
    assert "None of the chosen rows" in answer.content.decode()


@pytest.mark.parametrize(("name", "shown"), [("since", 1), ("until", 0)])
def test_a_time_at_an_end_of_the_calendar_is_one_like_others(admin_client: Client, name: str, shown: int) -> None:
    offset = publish("t", 1).offset
    for time, found in (("0001-01-01T00:00", shown), ("9999-12-31T23:59:59", 1 - shown)):
        assert offsets(look(admin_client, **{name: time})) == [offset] * found


def test_a_page_shows_results_and_progress(admin_client: Client, consuming: Consuming) -> None:
    go = consuming.gate()

    @consuming.consumer("t", group="running")
    def handle(delivery: Delivery) -> None:
        delivery.progress(3, 10, "<b>pages</b>")
        assert go.wait(60)

    consuming.consumer("t", lambda delivery: {"url": "<script>"}, group="done", keep_results=60)
    offset = publish("t", 1).offset
    assert offset is not None
    consuming.start()
    wait_until(lambda: Progress.objects.exists() and Result.objects.exists())
    html = page(admin_client, offset)
    assert "3 of 10: &lt;b&gt;pages&lt;/b&gt;" in html
    assert escape('"url": "<script>"') in html
