"""Rows of the queue's tables as tests need them: a test names what it is about, and the rest has a value that fits.

    MessageFactory(topic="orders", payload={"number": 7})                      # one row
    DeadLetterFactory.create_batch(3, failed_group="mail")                     # three, one statement each
    DeliveryStateFactory.insert(200, partition=Iterator(range(200)))           # many, in a few statements
    MessageValueFactory(offset=5)                                              # a value that no table knows

They are rows by hand, past the queue's own rules. A test of what publishing or consuming does calls `publish`, or
consumes. For tens of thousands of rows (tests/admin/crowd.py) factories take too long.
"""

from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Generic, TypeVar

from factory import Factory, LazyAttribute, LazyFunction, SelfAttribute, Sequence
from factory.django import DjangoModelFactory

from sqlqueue.core.settle_plan import FetchedMessage as MessageValue
from sqlqueue.models import (
    Activity,
    BlockedRange,
    CollectedMessage,
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    PartitionLease,
    Receipt,
    Request,
    Result,
    ScheduledMessage,
    SubscriberHeartbeat,
    Topic,
    dead_letter_topic,
)

Row = TypeVar("Row")
ROWS_AT_ONCE = 500


def now() -> datetime:
    return datetime.now(timezone.utc)


def in_an_hour() -> datetime:
    return now() + timedelta(hours=1)


def this_minute() -> datetime:
    return now().replace(second=0, microsecond=0)


class RowFactory(DjangoModelFactory, Generic[Row]):
    """Makes rows of one model."""

    class Meta:
        abstract = True

    @classmethod
    def insert(cls, count: int, **values: Any) -> list[Row]:
        """Insert so many rows in statements of ROWS_AT_ONCE; return them, without what only the database knows."""
        return cls._meta.model.objects.bulk_create(cls.build_batch(count, **values), batch_size=ROWS_AT_ONCE)


class TopicFactory(RowFactory[Topic]):
    """A topic of one partition."""

    class Meta:
        model = Topic

    name = "t"
    partitions = 1


class MessageFactory(RowFactory[Message]):
    """A message in the log."""

    class Meta:
        model = Message

    topic = "t"
    partition = 0
    message_id = Sequence("m{}".format)
    payload = 1


class DeadLetterFactory(MessageFactory):
    """A message of `original_topic` at `original_offset` that has died for `failed_group`."""

    topic = LazyAttribute(lambda letter: dead_letter_topic(letter.original_topic))
    message_id = LazyAttribute(lambda letter: f"{letter.failed_group}:{letter.original_offset}")
    original_topic = "t"
    original_offset = Sequence(lambda number: number + 1)
    failed_group = "g"
    failed_at = LazyFunction(now)
    failure_count = 5
    last_error = "ValueError: no"


class ScheduledMessageFactory(RowFactory[ScheduledMessage]):
    """A message on its way into the log, which is due now."""

    class Meta:
        model = ScheduledMessage

    topic = "t"
    payload = 1


class ConsumerGroupFactory(RowFactory[ConsumerGroup]):
    """A registered group, without its leases."""

    class Meta:
        model = ConsumerGroup

    topic = "t"
    consumer_group = "g"


class OfAPartition(RowFactory[Row]):
    """Rows of a group's partition."""

    class Meta:
        abstract = True

    topic = "t"
    consumer_group = "g"
    partition = 0


class PartitionLeaseFactory(OfAPartition[PartitionLease]):
    """A lease that no process holds."""

    class Meta:
        model = PartitionLease


class OffsetFactory(OfAPartition[Offset]):
    """How far a group is: at `position`, with nothing in flight and no rows."""

    class Meta:
        model = Offset

    position = 0
    offset_acked = SelfAttribute("position")
    claimed_to = SelfAttribute("position")
    fencing_token = 1


class DeliveryStateFactory(OfAPartition[DeliveryState]):
    """A message that waits for a group's handler, and is due."""

    class Meta:
        model = DeliveryState

    message_offset = Sequence(lambda number: number + 1)


class BlockedRangeFactory(OfAPartition[BlockedRange]):
    """What waits behind the first message of a key."""

    class Meta:
        model = BlockedRange

    partition_key = Sequence("key-{}".format)
    low = 0
    high = 100
    messages = 1


class ReceiptFactory(OfAPartition[Receipt]):
    """That a message was acknowledged at the first attempt, in no time."""

    class Meta:
        model = Receipt

    message_offset = Sequence(lambda number: number + 1)
    outcome = "acked"
    attempts = 1
    started_at = LazyFunction(now)
    finished_at = SelfAttribute("started_at")
    worker = "w"
    serial = Sequence(lambda number: number)


class CollectedMessageFactory(RowFactory[CollectedMessage]):
    """A collected message that is kept for an hour, without groups."""

    class Meta:
        model = CollectedMessage

    topic = "t"
    partition = 0
    priority = 0
    partition_key = ""
    message_id = Sequence("m{}".format)
    message_offset = Sequence(lambda number: number + 1)
    target_group = ""
    outcomes: ClassVar[dict[str, Any]] = {}
    payload = 1
    created_at = LazyFunction(now)
    kept_until = LazyFunction(in_an_hour)


class ResultFactory(RowFactory[Result]):
    """A result that is kept for an hour."""

    class Meta:
        model = Result

    topic = "t"
    message_id = Sequence("m{}".format)
    consumer_group = "g"
    message_offset = Sequence(lambda number: number + 1)
    outcome = "acked"
    attempts = 1
    started_at = LazyFunction(now)
    finished_at = SelfAttribute("started_at")
    expires_at = LazyFunction(in_an_hour)


class RequestFactory(RowFactory[Request]):
    """An operator's request to deliver dead letters again."""

    class Meta:
        model = Request

    kind = "replay"
    topic = "t"
    options: ClassVar[dict[str, Any]] = {}
    through = 1


class ActivityFactory(RowFactory[Activity]):
    """What a group did in this minute: nothing."""

    class Meta:
        model = Activity

    topic = "t"
    consumer_group = "g"
    minute = LazyFunction(this_minute)


class SubscriberHeartbeatFactory(RowFactory[SubscriberHeartbeat]):
    """A process that has just beaten; its beat counts for an hour."""

    class Meta:
        model = SubscriberHeartbeat

    topic = "t"
    consumer_group = "g"
    subscriber = Sequence("s{}".format)
    beat_at = LazyFunction(now)
    expires_at = LazyAttribute(lambda beat: beat.beat_at + timedelta(hours=1))


class MessageValueFactory(Factory):
    """A message as a fetch reads it."""

    class Meta:
        model = MessageValue

    offset = 1
    key = ""
    id = LazyAttribute(lambda message: f"m{message.offset}")
    payload = "1"
    headers = None
    created = 0
    target_group = ""
