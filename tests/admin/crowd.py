"""A queue that has seen much: put into the tables at once, for what looking at it costs."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice

from django.db import connection

from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.core.keys import partition_of
from sqlqueue.log.groups import register
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import BlockedRange, DeliveryState, Message, Offset, Receipt, Request, Topic
from tests.logs import LOG

AT_ONCE = 5_000
ERROR = """Traceback (most recent call last):
  File "/srv/shop/orders.py", line 7, in pay
    raise KeyError(number)
KeyError: {}"""


class Crowd:
    """A topic, another one that is busier, and dead letters of the first, of twelve groups and forty kinds."""

    def __init__(self, messages: int, letters: int, partitions: int = 200, groups: int = 12) -> None:
        forget_topics()
        self.groups = [f"g{number}" for number in range(groups)]
        for name in ("t", "t_dlq"):
            Topic.objects.create(name=name, partitions=partitions, priorities=1)
        Topic.objects.create(name="busy", partitions=8, priorities=2)
        for group in self.groups:
            register(LOG, group, "t")
        self.insert(self.published(messages - letters, partitions))
        originals = Message.objects.filter(topic="t").order_by("offset").values_list("offset", flat=True)
        self.insert(self.died(list(originals[:letters]), partitions))
        highest = Message.objects.order_by("-offset").values_list("offset", flat=True)[0]
        marks = {"position": highest, "offset_acked": highest, "claimed_to": highest, "fencing_token": 1}
        Offset.objects.bulk_create(
            [
                Offset(consumer_group=group, topic="t", partition=partition, **marks)
                for group in self.groups
                for partition in range(partitions)
            ]
        )
        now = datetime.now(timezone.utc)
        outcome = {"topic": "t", "outcome": "dead", "attempts": 5, "started_at": now, "finished_at": now, "worker": "w"}
        Receipt.objects.bulk_create(
            [
                Receipt(consumer_group="g0", partition=0, message_offset=n, serial=n, **outcome)
                for n in range(min(20_000, messages))
            ],
            batch_size=AT_ONCE,
        )
        DeliveryState.objects.bulk_create(
            [
                DeliveryState(
                    consumer_group=self.groups[n % groups], topic="t", partition=n % partitions, message_offset=n
                )
                for n in range(min(5_000, messages))
            ],
            batch_size=AT_ONCE,
        )
        BlockedRange.objects.bulk_create(
            [
                BlockedRange(
                    consumer_group=self.groups[n % groups],
                    topic="t",
                    partition=n % partitions,
                    partition_key=f"blocked {n}",
                    low=n,
                    high=n + 10,
                )
                for n in range(min(5_000, messages))
            ],
            batch_size=AT_ONCE,
        )
        handed_over = {"payload": 1, "attempts": 1, "fencing_token": 1, "published_at": now, "state": "done"}
        WorkItem.objects.bulk_create(
            [
                WorkItem(
                    topic="t",
                    consumer_group=self.groups[n % groups],
                    message_id=f"{n}",
                    message_offset=n,
                    **handed_over,
                )
                for n in range(min(2_000, messages))
            ],
            batch_size=AT_ONCE,
        )
        of_all = {"kind": "replay", "topic": "t", "options": {}, "through": highest, "total": 10, "state": "done"}
        Request.objects.bulk_create([Request(**of_all) for _ in range(200)])
        with connection.cursor() as cursor:
            if connection.vendor == "mysql":
                for model in (Message, Offset, Receipt, DeliveryState, BlockedRange, WorkItem, Request):
                    cursor.execute(f"ANALYZE TABLE {model._meta.db_table}")
                    cursor.fetchall()
            else:
                cursor.execute("ANALYZE")

    def insert(self, messages: Iterator[Message]) -> None:
        while some := list(islice(messages, AT_ONCE)):
            Message.objects.bulk_create(some, batch_size=500)

    def published(self, count: int, partitions: int) -> Iterator[Message]:
        began = datetime.now(timezone.utc) - timedelta(days=1)
        for number in range(count):
            topic, those = ("t", partitions) if number % 4 else ("busy", 8)
            key = f"k{number % 10_007}"
            yield Message(
                topic=topic,
                partition=partition_of(key, those),
                partition_key=key,
                message_id=f"id-{number}",
                payload={"number": number, "filler": "x" * 200},
                created_at=began + timedelta(seconds=number * 86_000 / count),
            )

    def died(self, originals: list[int], partitions: int) -> Iterator[Message]:
        began = datetime.now(timezone.utc) - timedelta(hours=1)
        for number, original in enumerate(originals):
            group, kind = self.groups[number % len(self.groups)], number % 40
            key = f"k{number % 10_007}"
            yield Message(
                topic="t_dlq",
                partition=partition_of(key, partitions),
                partition_key=key,
                message_id=f"{group}:{original}",
                payload={"number": number},
                failed_at=began + timedelta(seconds=number / 10),
                failure_count=5,
                last_error=ERROR.format(kind),
                fingerprint=f"KeyError in shop/orders.py:pay{kind}",
                original_topic="t",
                original_offset=original,
                failed_group=group,
            )
