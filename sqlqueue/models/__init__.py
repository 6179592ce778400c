"""The tables, one in each file. Their names and columns are public: users of plain SQL rely on them. Imported by
tracing and everything above it."""

from sqlqueue.models.acked_mark import AckedMark
from sqlqueue.models.activity import Activity
from sqlqueue.models.blocked_range import BlockedRange
from sqlqueue.models.collected_message import CollectedMessage
from sqlqueue.models.consumer_group import ConsumerGroup
from sqlqueue.models.delivery_state import DeliveryState
from sqlqueue.models.duty import Duty
from sqlqueue.models.layout import EpochSlot, Layout
from sqlqueue.models.limit_share import LimitShare
from sqlqueue.models.message import Message, dead_letter_topic
from sqlqueue.models.offset import Offset
from sqlqueue.models.overview import DeadLetter, Overview
from sqlqueue.models.partition_lease import PartitionLease
from sqlqueue.models.periodic_schedule import PeriodicSchedule
from sqlqueue.models.progress import Progress
from sqlqueue.models.publish_gate import PublishGate
from sqlqueue.models.receipt import Receipt
from sqlqueue.models.relay import RelayPosition
from sqlqueue.models.request import Request
from sqlqueue.models.result import Result
from sqlqueue.models.scheduled_message import ScheduledMessage
from sqlqueue.models.subscriber_heartbeat import SubscriberHeartbeat
from sqlqueue.models.topic import Topic
from sqlqueue.models.unique_message import UniqueMessage

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
