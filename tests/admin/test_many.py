"""With 200 partitions, a backlog in each, and 10,000 dead letters no page needs more than 30 statements."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sqlqueue import NewMessage, publish_many
from sqlqueue.log.groups import register
from sqlqueue.models import Activity, ConsumerGroup, DeliveryState, Message, Offset, Topic
from tests.admin.test_overview import page, words

pytestmark = pytest.mark.django_db(transaction=True)

PARTITIONS, LETTERS = 200, 10_000
MOST = 30


@pytest.fixture
def many(settings: object) -> ConsumerGroup:
    """Three groups of a topic with PARTITIONS, each behind and failing in all of them, and the LETTERS of one."""
    settings.SQLQUEUE = {"TOPICS": {"wide": {"partitions": PARTITIONS}}, "WAKE": False}
    for name in ("a", "b", "c"):
        register("default", name, "wide")
    publish_many("wide", [NewMessage(number, key=str(number)) for number in range(4_000)])
    Topic.objects.create(name="wide_dlq", partitions=PARTITIONS)
    Message.objects.bulk_create(
        [
            Message(
                topic="wide_dlq",
                partition=number % PARTITIONS,
                message_id=f"a:{number}",
                payload=number,
                failed_group="a",
                failed_at=timezone.now(),
                failure_count=5,
                last_error="ValueError: no",
                original_topic="wide",
                original_offset=number,
                fingerprint=f"ValueError at handlers.py:{number % 20}",
            )
            for number in range(LETTERS)
        ],
        batch_size=1_000,
    )
    marks = {"position": 0, "offset_acked": 0, "claimed_to": 0, "fencing_token": 1}
    place = {"consumer_group": "a", "topic": "wide"}
    Offset.objects.bulk_create([Offset(**place, partition=n, **marks) for n in range(PARTITIONS)])
    DeliveryState.objects.bulk_create(
        [DeliveryState(**place, partition=n, message_offset=n + 1, retry_count=1) for n in range(PARTITIONS)]
    )
    minute = timezone.now().replace(second=0, microsecond=0)
    Activity.objects.bulk_create(
        [
            Activity(topic="wide", consumer_group=name, minute=minute - timedelta(minutes=ago), acked=60, lag=ago)
            for name in ("a", "b", "c")
            for ago in range(360)
        ]
    )
    return ConsumerGroup.objects.get(consumer_group="a")


def test_no_page_needs_many_statements(many: ConsumerGroup, admin_client: Client) -> None:
    group = f"consumergroup/{many.pk}"
    for address in (
        "overview/",
        f"{group}/change/",
        f"{group}/replay/?offset=100",
        f"{group}/delete/",
        "topic/wide/change/",
        "consumergroup/",
        "topic/",
        "offset/",
        "partitionlease/",
        "deliverystate/",
    ):
        with CaptureQueriesContext(connection) as seen:
            html = page(admin_client, f"/admin/sqlqueue/{address}")
        assert len(seen) <= MOST, f"{address}: {len(seen)} statements"
        if address == "overview/":
            assert "10,000+" in words(html)
