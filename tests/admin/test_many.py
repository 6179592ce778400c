"""With 200 partitions, a backlog in each, and 10,000 dead letters no page needs more than 30 statements."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from factory import Iterator

from sqlqueue import NewMessage, publish_many
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup
from tests.admin.test_overview import page, words
from tests.factories import (
    ActivityFactory,
    DeadLetterFactory,
    DeliveryStateFactory,
    OffsetFactory,
    TopicFactory,
    this_minute,
)
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

PARTITIONS, LETTERS = 200, 10_000
MOST = 30


@pytest.fixture
def many(settings: object) -> ConsumerGroup:
    """Three groups of a topic with PARTITIONS, each behind and failing in all of them, and the LETTERS of one."""
    settings.SQLQUEUE = {"TOPICS": {"wide": {"partitions": PARTITIONS}}, "WAKE": False}
    for name in ("a", "b", "c"):
        register(LOG, name, "wide")
    publish_many("wide", [NewMessage(number, key=str(number)) for number in range(4_000)])
    TopicFactory(name="wide_dlq", partitions=PARTITIONS)
    DeadLetterFactory.insert(
        LETTERS,
        original_topic="wide",
        failed_group="a",
        partition=Iterator(range(PARTITIONS)),
        fingerprint=Iterator([f"ValueError at handlers.py:{number}" for number in range(20)]),
    )
    place = {"consumer_group": "a", "topic": "wide"}
    OffsetFactory.insert(PARTITIONS, **place, partition=Iterator(range(PARTITIONS)))
    DeliveryStateFactory.insert(PARTITIONS, **place, partition=Iterator(range(PARTITIONS)), retry_count=1)
    minutes = [this_minute() - timedelta(minutes=ago) for ago in range(360)]
    for name in ("a", "b", "c"):
        of = {"topic": "wide", "consumer_group": name}
        ActivityFactory.insert(360, **of, minute=Iterator(minutes), acked=60, lag=Iterator(range(360)))
    return ConsumerGroup.objects.get(consumer_group="a")


def test_no_page_needs_many_statements(many: ConsumerGroup, admin_client: Client) -> None:
    group = f"consumergroup/{many.pk}"
    for address in (
        "overview/",
        f"{group}/change/",
        f"{group}/operation/move/?count=1&offset=100",
        f"{group}/operation/remove/",
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
