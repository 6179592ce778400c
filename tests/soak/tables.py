"""Reads what the final tables of a run say, those of each database by themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sqlqueue.database.log import Log
from tests.soak import workload
from tests.soak.places import offset_at, partition_at
from tests.soak.records import DeadLetter, Record


def rows_left(alias: str) -> Counter[str]:
    """Return the rows that no group needs any more, and epochs that have ended, on a database."""
    from sqlqueue.log.layouts import epochs
    from sqlqueue.models import (
        BlockedRange,
        DeliveryState,
        EpochSlot,
        Message,
        Receipt,
        Result,
        ScheduledMessage,
        Topic,
    )

    tables = {
        "sqlqueue_message": Message.objects.filter(topic__in=[*workload.TOPICS, *workload.PHASE_TOPICS]),
        "sqlqueue_epoch_slot": EpochSlot.objects.all(),
        "sqlqueue_delivery_state": DeliveryState.objects.all(),
        "sqlqueue_blocked_range": BlockedRange.objects.all(),
        "sqlqueue_receipt": Receipt.objects.all(),
        "sqlqueue_scheduled_message": ScheduledMessage.objects.all(),
        "sqlqueue_result (replies)": Result.objects.filter(topic=workload.REQUESTS),
    }
    left = Counter({name: rows.using(alias).count() for name, rows in tables.items()})
    present = Topic.objects.using(alias).filter(name__in=workload.TOPICS).values_list("name", flat=True)
    left["sqlqueue_layout (epochs that have ended)"] = sum(len(epochs(Log.of(alias), topic)) - 1 for topic in present)
    return +left


def fill_in(record: Record, alias: str) -> None:
    """Read what the final tables of a database say of dead letters and effects. The logs that are kept have been
    read."""
    from django.db.models import Count

    from sqlqueue.log.layout_changes import under_way
    from sqlqueue.log.layouts import epochs
    from sqlqueue.models import Message, Topic
    from tests.soak.models import Entry

    requests = {entry.offset: entry.id for entry in record.jobs.log if entry.topic == workload.REQUESTS}
    database = alias
    for dead_letter in Message.objects.using(alias).dead_letters():
        if dead_letter.original_topic == workload.TASKS.topic:
            record.jobs.dead_tasks.append(dead_letter.payload["id"])
            continue
        record.dead.append(
            DeadLetter(
                dead_letter.original_topic,
                dead_letter.failed_group,
                offset_at(database, dead_letter.original_offset or 0),
                requests.get(dead_letter.original_offset or 0, dead_letter.payload["id"]),
                dead_letter.failure_count,
                dead_letter.last_error or "",
                dead_letter.failed_at.timestamp(),
            )
        )
    log = Message.objects.using(alias)
    record.dead_letters += log.filter(topic=workload.DEAD_LETTERS).values_list("topic", "message_id")
    counted = Entry.objects.using(alias).values_list("group", "message").annotate(count=Count("id"))
    for group, message, count in counted:
        record.entries[group, message] = record.entries.get((group, message), 0) + count
    present = Topic.objects.using(alias).filter(name__in=workload.ALTERED).values_list("name", flat=True)
    for topic in present:
        of_database = epochs(Log.of(alias), topic, retired=True)
        found = (replace(epoch, base=partition_at(database, epoch.base)) for epoch in of_database)
        record.epochs[topic] = (*record.epochs.get(topic, ()), *found)
    placed = log.filter(topic__in=workload.ALTERED).values_list("topic", "message_id", "partition")
    record.placed.update({(topic, id): partition_at(database, partition) for topic, id, partition in placed})
    record.unfinished = record.unfinished or str(under_way(Log.of(alias)) or "")


def leases_left(alias: str) -> Counter[str]:
    """Return leases, shares of limits and heartbeats that no process has released."""
    from sqlqueue.models import LimitShare, PartitionLease, SubscriberHeartbeat
    from sqlqueue.models.subscriber import WAITS

    held = PartitionLease.objects.using(alias).exclude(holder__in=["", WAITS])
    return Counter(
        {
            "sqlqueue_limit_share": LimitShare.objects.using(alias).alive().count(),
            "sqlqueue_partition_lease": held.count(),
            "sqlqueue_subscriber_heartbeat": SubscriberHeartbeat.objects.using(alias).alive().count(),
        }
    )
