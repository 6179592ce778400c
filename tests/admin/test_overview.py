"""The overview says how everything stands, what is wrong, and what to do."""

import re
from collections.abc import Callable
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from django.test import Client, override_settings
from django.utils import timezone

from sqlqueue import Delivery, Reject, Retry, publish, publish_many
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup, Message, PartitionLease
from sqlqueue.operations.topics import pause
from tests.consuming import Consuming
from tests.factories import (
    ActivityFactory,
    ScheduledMessageFactory,
)
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.once

OVERVIEW = "/admin/sqlqueue/overview/"


def words(html: str) -> str:
    """Return a page's text as it is read, without what only draws."""
    text = re.sub(r"<(style|script)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def page(client: Client, address: str = OVERVIEW) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_index_leads_there(admin_client: Client) -> None:
    assert f'href="{OVERVIEW}"' in page(admin_client, "/admin/")
    assert "Nothing has been published yet." in page(admin_client)


def test_a_group_that_is_away_is_told_and_its_backlog_counted(consuming: Consuming, admin_client: Client) -> None:
    register(LOG, "mail", "orders")
    publish_many("orders", range(30))
    text = words(page(admin_client))
    assert "No consumer process is alive." in text
    assert "mail of orders is away: no consumer process serves it, 30 messages wait for it" in text
    assert "away: holds back collection" in text
    assert "without owner" not in text  # as is every partition of a group that no process serves


def test_what_failed_and_died_is_shown_and_linked(consuming: Consuming, admin_client: Client) -> None:
    @consuming.consumer("orders", group="mail")
    def handle(delivery: Delivery) -> None:
        if delivery.payload == "retry":
            raise Retry(delay=3600)
        raise Reject("no")

    offset = publish("orders", "retry", key="a").offset
    publish("orders", "reject", key="b")
    consuming.drain()
    Message.objects.update(created_at=timezone.now() - timedelta(minutes=10))
    host = consuming.start()
    wait_until(lambda: PartitionLease.objects.exclude(holder="").exists())
    html = page(admin_client)
    consuming.end_hosts()
    assert not host.running
    assert "has stood still for 10 min" in words(html)
    assert "fails again and again, and is retried." in words(html)
    assert f"Message {offset}" in words(html)
    [row] = re.findall(r"<tr>\s*<th scope=\"row\">.*?</tr>", html, re.DOTALL)
    cells = dict(re.findall(r'data-label="([^"]+)">(.*?)</td>', row, re.DOTALL))
    assert words(cells["Failing"]) == "1"
    assert words(cells["Dead letters"]) == "1"
    assert words(cells["Subscribers"]) == "1"
    assert words(cells["Lag"]) == "1"


def test_a_partition_without_owner_is_told(consuming: Consuming, admin_client: Client) -> None:
    consuming.consumer("orders", lambda delivery: None, group="mail")
    publish("orders", 1)
    consuming.start()
    wait_until(lambda: not PartitionLease.objects.filter(holder="").exists() and PartitionLease.objects.exists())
    assert "has no owner" not in page(admin_client)
    consuming.end_hosts()
    from sqlqueue.leases.heartbeat import beat

    subscriber = "shop-1:4711"
    beat(LOG, subscriber, [("mail", "orders")], lease_duration=60.0)
    PartitionLease.objects.update(holder=subscriber, valid_until=timezone.now() + timedelta(hours=1))
    PartitionLease.objects.filter(partition=2).update(holder="", valid_until=None)
    assert "1 partition of mail of orders has no owner: it is not read." in words(page(admin_client))


def test_what_is_paused_refused_or_late_is_told(consuming: Consuming, admin_client: Client) -> None:
    register(LOG, "mail", "orders")
    publish("orders", 1)
    pause(LOG, "orders", "mail")
    ScheduledMessageFactory(topic="orders", refused=True, refusal="too long")
    ScheduledMessageFactory(topic="orders", due_at=timezone.now() - timedelta(minutes=5))
    text = words(page(admin_client))
    assert "1 scheduled message of orders was refused by the log." in text
    assert "1 scheduled message of orders is overdue by a minute or more." in text
    assert re.search(r"mail paused", text)


def test_the_charts_draw_and_say_what_happened(consuming: Consuming, admin_client: Client) -> None:
    register(LOG, "mail", "orders")
    publish("orders", 1)
    now = timezone.now().replace(second=0, microsecond=0)
    for ago, acked, dead in ((40, 600, 0), (20, 6_000, 360)):
        ActivityFactory(
            topic="orders",
            consumer_group="mail",
            minute=now - timedelta(minutes=ago),
            acked=acked,
            dead=dead,
            lag=ago * 10,
        )
    html = page(admin_client, OVERVIEW + "?hours=1")
    charts = {}
    for text in re.findall(r"<svg viewBox.*?</svg>", html, re.DOTALL):
        svg = ElementTree.fromstring(text)
        assert svg.get("role") == "img"
        title, desc, path = svg
        assert svg.get("aria-labelledby", "").split() == [title.get("id"), desc.get("id")]
        assert html.count(f'id="{title.get("id")}"') == 1
        charts[title.text] = (desc.text, path.get("d"))
    assert "at most 100 at" in charts["Acknowledged a second"][0]
    assert charts["Acknowledged a second"][1].count("M") == 2
    assert "at most 400 at" in charts["Lag in messages"][0]
    assert "at most 6 at" in charts["Failures a second"][0]
    assert charts["Failures a second"][1].count("M") == 1


def test_it_is_shown_to_those_who_may_see_it_and_links_to_what_they_may_see(
    staff: Callable[..., Client], consuming: Consuming
) -> None:
    register(LOG, "mail", "orders")
    publish("orders", 1)
    assert Client().get(OVERVIEW).status_code == 302
    assert staff().get(OVERVIEW).status_code == 403
    html = page(staff("view_overview"))
    assert "mail" in html
    assert "/admin/sqlqueue/consumergroup/" not in html
    assert "/admin/sqlqueue/consumergroup/" in page(staff("view_overview", "view_consumergroup"))


@override_settings(ROOT_URLCONF="tests.admin.own_site")
def test_a_site_of_the_projects_own_has_it_too(consuming: Consuming, admin_client: Client) -> None:
    register(LOG, "mail", "orders")
    publish("orders", 1)
    group = ConsumerGroup.objects.get()
    html = page(admin_client, "/operations/sqlqueue/overview/")
    assert f"/operations/sqlqueue/consumergroup/{group.pk}/change/" in html
    assert '"/admin/' not in html
    html = page(admin_client, f"/operations/sqlqueue/consumergroup/{group.pk}/change/")
    assert f'action="/operations/sqlqueue/consumergroup/{group.pk}/operation/pause/"' in html
    answer = admin_client.post(f"/operations/sqlqueue/consumergroup/{group.pk}/operation/pause/")
    assert answer["Location"] == f"/operations/sqlqueue/consumergroup/{group.pk}/change/"
