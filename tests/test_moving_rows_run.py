"""What rows of docs/moving/*.md say of sqlqueue, done as they say it, where no test of a part does it.

tests/moving_rows.py has the list."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import transaction

from sqlqueue import Delivery, periodic, publish
from sqlqueue.models import Message
from sqlqueue.testing import drain, published
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming
from tests.management.running import run

pytestmark = pytest.mark.django_db(transaction=True)


def test_of_messages_priority_0_is_delivered_first(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {"partitions": 2, "priorities": 10}}}
    seen: list[int] = []
    consuming.consumer("orders", lambda delivery: seen.append(delivery.priority))
    for number in (5, 9, 0, 7, 1, 0):
        publish("orders", number, priority=number)
    assert drain() == 6
    assert seen == [0, 0, 1, 5, 7, 9]


def test_a_cron_expression_ticks_every_night_and_each_tick_is_published_once(consuming: Consuming) -> None:
    seen: list[datetime] = []

    @periodic("0 3 * * *", name="tidy")
    def tidy(delivery: Delivery) -> None:
        seen.append(datetime.fromisoformat(delivery.payload["tick"].replace("Z", "+00:00")))

    now = datetime.now(timezone.utc)
    drain(until=now + timedelta(days=3))
    drain(until=now + timedelta(days=3))
    first = now.replace(hour=3, minute=0, second=0, microsecond=0)
    first += timedelta(days=first <= now)
    assert seen == [first + timedelta(days=day) for day in range(3)]
    assert len(published("periodic")) == 3


def test_an_atomic_handler_commits_its_step_and_the_next_message_together(consuming: Consuming) -> None:
    seen: list[Any] = []
    consuming.consumer("second", lambda delivery: seen.append(delivery.payload))

    @consuming.consumer("first", atomic=True, backoff=0)
    def first(delivery: Delivery) -> None:
        Effect.objects.create(name="first", value=str(delivery.attempt))
        publish("second", {"after": delivery.payload, "attempt": delivery.attempt})
        if delivery.attempt == 1:
            raise OSError("the step fails after it has published")

    publish("first", "a")
    drain()
    assert seen == [{"after": "a", "attempt": 2}]
    assert [effect.value for effect in Effect.objects.all()] == ["2"]


def test_the_log_keeps_all_of_a_key_and_a_table_of_ones_own_the_latest_state(
    consuming: Consuming, settings: Any
) -> None:
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"prices": {"partitions": 2, "retention": timedelta(days=30)}}}

    @consuming.consumer("prices", atomic=True)
    def keep(delivery: Delivery) -> None:
        Effect.objects.update_or_create(name=delivery.key, defaults={"value": str(delivery.payload)})

    for key, price in (("tea", 1), ("milk", 5), ("tea", 2), ("tea", 3)):
        publish("prices", price, key=key)
    drain()
    assert dict(Effect.objects.values_list("name", "value")) == {"tea": "3", "milk": "5"}
    rewound = run("queuegroup", "rewind", "prices", "--group", "default", "--from", "earliest", "--no-input")
    assert rewound.code == 0, rewound
    assert drain() == 4  # nothing was compacted
    assert dict(Effect.objects.values_list("name", "value")) == {"tea": "3", "milk": "5"}


def test_offsets_are_one_sequence_for_all_topics_and_rise_within_a_partition_with_gaps() -> None:
    order = [publish(("orders", "mails")[number % 2], number, key=f"k{number % 3}").offset for number in range(20)]
    assert order == sorted(set(order))
    for topic in ("orders", "mails"):
        for partition in set(Message.objects.filter(topic=topic).values_list("partition", flat=True)):
            rows = Message.objects.filter(topic=topic, partition=partition).order_by("offset")
            assert list(rows.values_list("payload", flat=True)) == sorted(row.payload for row in rows)
            offsets = list(rows.values_list("offset", flat=True))
            assert offsets[-1] - offsets[0] >= len(offsets)  # the other topic's are between them


def test_a_transaction_and_an_id_make_a_publish_idempotent_across_restarts(consuming: Consuming) -> None:
    seen: list[Any] = []
    consuming.consumer("orders", lambda delivery: seen.append(delivery.payload))

    def produce(fails: bool) -> None:
        with transaction.atomic():
            Effect.objects.get_or_create(name="order", value="7")
            publish("orders", {"order": 7}, id="order-7")
            if fails:
                raise OSError("before its commit")

    with pytest.raises(OSError, match="before its commit"):
        produce(fails=True)
    assert (drain(), Effect.objects.count()) == (0, 0)
    produce(fails=False)
    assert drain() == 1
    produce(fails=False)  # a producer that was started again, and knows nothing of it
    assert drain() == 0
    assert seen == [{"order": 7}]
