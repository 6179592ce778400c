"""Django signals of the queue; logs and metrics receive them.

Each is sent once, after the event. Its sender is the class or function of `sqlqueue` that did the work; the arguments
are listed here; all have `database` too, the alias of the database that it happened on, "" if there is one log only. If
a receiver raises, that is logged and has no other effect.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

from sqlqueue.core import forks
from sqlqueue.core.logfmt import logfmt

logger = logging.getLogger("sqlqueue")

# Of the hot path: sent once for many deliveries.
deliveries_dispatched = Signal()  # group, topic, partition, count
messages_filtered = Signal()  # group, topic, partition, count: acked without a handler, by the consumer's filter
deliveries_settled = Signal()  # group, topic, partition, attempts (of core.settle_plan: SettledAttempt)

message_published = Signal(use_caching=True)  # topic, count
delivery_settled = Signal()  # group, topic, partition, offset, outcome, attempt, seconds, error
delivery_failed = Signal()  # the same arguments, only for the outcome "retried"
dead_lettered = Signal()  # group, topic, partition, offset, attempt, error
lease_acquired = Signal()  # subscriber, group, topic, partitions
lease_released = Signal()  # subscriber, group, topic, partitions
lease_lost = Signal()  # subscriber, group, topic, partition, why (a sentence)
subscriber_started = Signal()  # subscriber, subscriptions
subscriber_stopped = Signal()  # subscriber
process_died = Signal()  # child (process id), subscriber, exit (-9: signal 9), lived, restart_in (seconds)
messages_collected = Signal()  # topic, count
results_collected = Signal()  # count
group_away = Signal()  # group, topic: no process serves it, and collection waits for it
database_unreachable = Signal()  # subscriber, error
operation_retried = Signal()  # operation, error_kind, error: a database error; it is run again
message_refused = Signal()  # id (of the scheduled message), topic, reason
ticks_published = Signal()  # schedule, topic, policy (its `missed`), count, missed (whether some were), seconds (late)
tick_refused = Signal()  # schedule, reason


def announce(signal: Signal, sender: Any, **arguments: Any) -> None:
    """Send a signal to every receiver; one that raises is logged, and the others still receive it."""
    if not signal.receivers:
        return
    process = forks.generation
    try:
        results = signal.send_robust(sender, **arguments)
    finally:
        if forks.generation != process:
            forks.leave_if_forked(process)
    for receiver, result in results:
        if isinstance(result, Exception):
            logger.error(logfmt("receiver_failed", receiver=receiver, error=result), exc_info=result)
