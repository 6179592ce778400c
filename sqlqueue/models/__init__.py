"""The tables, one a file. Names and columns are the contract of plain-SQL users too."""

from sqlqueue.models.activity import Activity
from sqlqueue.models.archive_segment import ArchiveSegment
from sqlqueue.models.blocked_range import BlockedRange
from sqlqueue.models.consumer_group import ConsumerGroup
from sqlqueue.models.delivery_state import DeliveryState
from sqlqueue.models.hourly_error import HourlyError
from sqlqueue.models.hourly_statistic import HourlyStatistic
from sqlqueue.models.message import Message, dead_letter_topic
from sqlqueue.models.offset import Offset
from sqlqueue.models.overview import Overview
from sqlqueue.models.partition_lease import PartitionLease
from sqlqueue.models.publish_gate import PublishGate
from sqlqueue.models.receipt import Receipt
from sqlqueue.models.replay import Replay
from sqlqueue.models.scheduled_message import ScheduledMessage
from sqlqueue.models.subscriber_heartbeat import SubscriberHeartbeat
from sqlqueue.models.topic import Topic

__all__ = [
    "Activity",
    "ArchiveSegment",
    "BlockedRange",
    "ConsumerGroup",
    "DeliveryState",
    "HourlyError",
    "HourlyStatistic",
    "Message",
    "Offset",
    "Overview",
    "PartitionLease",
    "PublishGate",
    "Receipt",
    "Replay",
    "ScheduledMessage",
    "SubscriberHeartbeat",
    "Topic",
    "dead_letter_topic",
]
