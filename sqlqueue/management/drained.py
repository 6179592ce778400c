"""What a drain leaves: messages whose time has not come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db.models import Count, Max, Min, Q

from sqlqueue.consumers.registry import Consumer
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT
from sqlqueue.database import clock
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.models import DeliveryState, ScheduledMessage


def what_waits(logs: Iterable[Log], consumers: Sequence[Consumer], drained_for: float = 0.0) -> str:
    """Return a sentence that says how many messages of these consumers wait for a retry or their time, and until when;
    "" if none does. drained_for: seconds since the drain began: what has become due since may have been left."""
    groups, began = Q(), DatabaseNow() - timedelta(seconds=drained_for)
    for each in consumers:
        groups |= Q(consumer_group=each.group, topic=each.topic)
    count, times = 0, list[datetime]()
    for log in logs:
        states = DeliveryState.objects.using(log.alias).unsettled().filter(groups, in_flight=NOT_IN_FLIGHT)
        scheduled = ScheduledMessage.objects.using(log.alias).filter(topic__in={each.topic for each in consumers})
        for rows, column in (
            (states.filter(invisible_until__gt=began), "invisible_until"),
            (scheduled.filter(refused=False, due_at__gt=began), "due_at"),
        ):
            found = rows.aggregate(count=Count("pk"), first=Min(column), last=Max(column))
            count += found["count"]
            times += [clock.moment(at) for at in (found["first"], found["last"]) if at is not None]
    if not count:
        return ""
    first, last = (f"{at:%Y-%m-%d %H:%M:%S} UTC" for at in (min(times), max(times)))
    until = f"until {first}" if first == last else f"the first until {first}, the last until {last}"
    waits = "1 message waits" if count == 1 else f"{count} messages wait"
    return f"All that was due is settled. {waits} for a retry or a later time, {until}: run it again then."
