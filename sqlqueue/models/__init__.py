"""The tables, by subject. Their names and columns are public: users of plain SQL rely on them. Imported by
tracing and everything above it."""

from sqlqueue.models.consumer_group import BlockedRange, ConsumerGroup, DeliveryState, Offset
from sqlqueue.models.message import CollectedMessage, DeadLetter, Message, UniqueMessage, dead_letter_topic
from sqlqueue.models.outcome import Activity, Progress, Receipt, Result
from sqlqueue.models.publish_gate import Duty, PublishGate, RelayPosition
from sqlqueue.models.request import Request
from sqlqueue.models.scheduled_message import PeriodicSchedule, ScheduledMessage
from sqlqueue.models.subscriber import LimitShare, PartitionLease, SubscriberHeartbeat
from sqlqueue.models.topic import AckedMark, EpochSlot, Layout, Overview, Topic

__all__ = [
    "AckedMark",
    "Activity",
    "BlockedRange",
    "CollectedMessage",
    "ConsumerGroup",
    "DeadLetter",
    "DeliveryState",
    "Duty",
    "EpochSlot",
    "Layout",
    "LimitShare",
    "Message",
    "Offset",
    "Overview",
    "PartitionLease",
    "PeriodicSchedule",
    "Progress",
    "PublishGate",
    "Receipt",
    "RelayPosition",
    "Request",
    "Result",
    "ScheduledMessage",
    "SubscriberHeartbeat",
    "Topic",
    "UniqueMessage",
    "dead_letter_topic",
]
