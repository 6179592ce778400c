"""How much is still to be delivered, and the mark that asks publishers to wait until it is less.

A run is to show what faults do, not that a machine is too small: publishers that outrun consumers for a whole run would
leave hours of work behind.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from sqlqueue.database.log import Log
from tests.soak import workload

LEAST, SECONDS = 4_000, 4.0  # so many deliveries may wait for consumers, or those of so many seconds
MARK = "publishers-wait"  # a file in the history's folder, as long as there are more
REST = "publishers-rest"  # likewise, as long as nothing is to be published
ALL = (*workload.ALL_READERS, workload.TASKS)
LONGEST_WAIT = 20.0  # seconds: then publishers go on, however much there is


def wait_for_consumers(folder: Path) -> None:
    """Wait while the mark is there, but not for ever."""
    deadline = time.monotonic() + LONGEST_WAIT
    while ((folder / MARK).exists() or (folder / REST).exists()) and time.monotonic() < deadline:
        time.sleep(0.1)


class Backlog:
    """Sets the mark, and takes it away."""

    def __init__(self, folder: Path, bulk_rate: float, aliases: Sequence[str] = ("default",)) -> None:
        self._mark, self._aliases = folder / MARK, aliases
        self._most = max(LEAST, bulk_rate * SECONDS)

    def look(self) -> None:
        """Look at the tables; a database that is away raises its Error."""
        if unsettled_on(self._aliases, workload.READERS) > self._most:
            self._mark.touch()
        else:
            self._mark.unlink(missing_ok=True)


def pending(using: str = "default") -> set[tuple[str, str, str]]:
    """Return what the tables of this database still have to be delivered: (topic, group, id). What lies below a group's
    position, neither in a row that is not acked nor in a range, is never read again."""
    from sqlqueue.log.layouts import numbers
    from sqlqueue.models import BlockedRange, DeliveryState, Message, Offset, ScheduledMessage, Topic

    stored = set(Topic.objects.using(using).values_list("name", flat=True))
    found: set[tuple[str, str, str]] = set()
    for reader in workload.ALL_READERS:
        topic, group = reader.topic, reader.group
        due = list(ScheduledMessage.objects.using(using).filter(topic=topic).values_list("message_id", flat=True))
        of_group = {"topic": topic, "consumer_group": group}
        waiting = (
            DeliveryState.objects.using(using).filter(**of_group, acked=False).values_list("message_offset", flat=True)
        )
        log = Message.objects.using(using).filter(topic=topic)
        queries = [log.filter(offset__in=waiting)]
        for partition in numbers(Log.of(using), topic) if topic in stored else ():
            offsets = Offset.objects.using(using).filter(**of_group, partition=partition)
            above = log.filter(partition=partition)
            for row in offsets if offsets.exists() else [Offset(priority=0, position=0)]:
                queries.append(above.filter(priority=row.priority, offset__gt=row.position))
        for blocked in BlockedRange.objects.using(using).filter(**of_group):
            inside = log.filter(partition=blocked.partition, partition_key=blocked.partition_key)
            queries.append(inside.filter(offset__gt=blocked.low, offset__lte=blocked.high))
        for ids in [due, *(query.values_list("message_id", flat=True) for query in queries)]:
            found.update((topic, group, id) for id in ids)
    return found


def unsettled_on(aliases: Sequence[str], readers: Sequence[workload.Reader] = ALL) -> int:
    """Return about how many deliveries are still to be done on all databases: first those on their way from one to
    another, which have arrived before they are gone."""
    from sqlqueue.core.relay import PREFIX
    from sqlqueue.models import Message

    relayed = sum(Message.objects.using(alias).filter(topic__startswith=PREFIX).count() for alias in aliases)
    return relayed + sum(unsettled(readers, alias) for alias in aliases)


def unsettled(readers: Sequence[workload.Reader] = ALL, using: str = "default") -> int:
    """Return about how many deliveries are still to be done for these, as the tables of this database tell it."""
    from sqlqueue.contrib.batches.models import Batch
    from sqlqueue.models import BlockedRange, DeliveryState, Message, Offset, ScheduledMessage
    from tests.progress import unread_streams

    topics = {reader.topic for reader in readers}
    count = 0
    if workload.CALLED in topics:  # first: a callback that is published meanwhile is counted below
        count = Batch.objects.using(using).filter(cancelled_at=None, finished_at=None, sealed_at__isnull=False).count()
    count += ScheduledMessage.objects.using(using).filter(topic__in=topics).count()
    count += DeliveryState.objects.using(using).filter(topic__in=topics, acked=False).count()
    count += sum(max(1, range_.messages) for range_ in BlockedRange.objects.using(using).filter(topic__in=topics))
    for reader in readers:
        unread = unread_streams(Log.of(using), reader.group, reader.topic)
        offsets = Offset.objects.using(using).filter(topic=reader.topic, consumer_group=reader.group)
        rows = offsets.values_list("partition", "priority", "position")
        positions = {(partition, priority): position for partition, priority, position in rows}
        for address in unread:
            where = address.partition, address.priority
            stream = Message.objects.using(using).filter(topic=reader.topic, partition=where[0], priority=where[1])
            count += stream.filter(offset__gt=positions.get(where, 0)).count()
    return count
