"""Facts, announced once, after they have become true; logs and metrics subscribe to them.

Every signal's sender is the `sqlqueue` module's class or function that did the work; the arguments are listed here. A
receiver that raises is logged and changes nothing.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

from sqlqueue.core.lines import line

logger = logging.getLogger("sqlqueue")

# Of the hot path: announced once for what was done together.
handed_out = Signal()  # group, topic, partition, count
settled_together = Signal()  # group, topic, partition, hands: of sqlqueue.core.plan, each with its outcome

message_published = Signal()  # topic, count
delivery_settled = Signal()  # group, topic, partition, offset, outcome, attempt, seconds, error
delivery_failed = Signal()  # the same, of the retried ones only
dead_lettered = Signal()  # group, topic, partition, offset, attempt, error
lease_acquired = Signal()  # subscriber, group, topic, partitions
lease_released = Signal()  # subscriber, group, topic, partitions
lease_lost = Signal()  # subscriber, group, topic, partition
subscriber_started = Signal()  # subscriber, subscriptions
subscriber_stopped = Signal()  # subscriber
messages_collected = Signal()  # topic, count
group_away = Signal()  # group, topic: nobody serves it, and collection waits for it
database_unreachable = Signal()  # subscriber, error
verb_failed = Signal()  # verb, fault, error: of the database, and is run again
message_refused = Signal()  # scheduled message's id, topic, reason


def announce(signal: Signal, sender: Any, **facts: Any) -> None:
    """Tell every receiver; one that raises is logged and keeps nobody else from hearing."""
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender, **facts):
        if isinstance(answer, Exception):
            logger.error(line("receiver_failed", receiver=receiver, error=answer), exc_info=answer)
