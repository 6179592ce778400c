"""A stream's place in its consumer group: it owns every partition, by leases and fencing tokens as a consumer does.

A consumer is never pushed out: a group that has live ones is refused. Of two streams the newer one wins, as it does
when Spark starts a query again; the older one's next settle finds its tokens stale. Positions move up to what the
stream's sink has committed, and nothing is claimed beyond: what a stream had in hand when it ended is delivered again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.core.lines import line
from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.exceptions import ConfigurationError, LeaseLost
from sqlqueue.leases.acquire import Taken, acquire
from sqlqueue.leases.heartbeat import beat, leave, subscriber_name
from sqlqueue.leases.hold import free, renew
from sqlqueue.log.groups import LATEST, lock_topic, register_at, revoke
from sqlqueue.log.settle import ADVANCE
from sqlqueue.log.topics import topic_info
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, PartitionLease, SubscriberHeartbeat, Topic
from sqlqueue.spark.plan import reached

logger = logging.getLogger("sqlqueue")

# What comes after a place in a stream? Index: (topic, partition, priority, offset).
NEXT = 'SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {by_place} LIMIT 1'
PREFIX = "spark:"
ACQUIRE_TIMEOUT = 10.0  # seconds: somebody may be committing what he has in an offset row
PROBE_TIMEOUT = 1.0  # seconds for which one look at the horizon may last


class Membership:
    """One run of a streaming query, as the only subscriber of its group in its topics. Beats in a thread of its own."""

    def __init__(self, alias: str, group: str, topics: Sequence[str], start: str, patience: float):
        self.alias, self.group, self.topics = alias, group, tuple(topics)
        self.name = PREFIX + subscriber_name()
        self._horizon = Horizon(alias)
        self._stopped = threading.Event()
        floor = reached(alias, patience)
        for topic in self.topics:
            register_at(alias, group, topic, floor if start == LATEST else 0)
        self._refuse_consumers()
        self._owned: list[Taken] = []
        for topic in self.topics:
            faults.run(alias, self._push_out_streams, topic)
            self._owned += self._take(topic, floor)
        self._leases = sum(topic_info(alias, topic).partitions for topic in self.topics)
        self._has_left = self._left(BlockedRange).exists() or any(taken.rows for taken in self._owned)
        settled = {topic: self._settled_by_all(topic, floor) for topic in self.topics}
        self.settled = min(settled.values())
        self._reachable = min(max(offset, settled[topic]) for topic, offset in self._reached().items())
        beat(alias, self.name, self._subscriptions, settings.LEASE_DURATION, activity="a Spark stream")
        self._thread = threading.Thread(target=self._keep, name="sqlqueue-spark-heartbeat", daemon=True)
        self._thread.start()

    @property
    def _subscriptions(self) -> list[tuple[str, str]]:
        return [(self.group, topic) for topic in self.topics]

    def paused(self) -> bool:
        """Tell whether somebody has paused the group, or one of the topics."""
        topics = Topic.objects.using(self.alias).filter(name__in=self.topics)
        return self._groups().filter(paused=True).exists() or topics.filter(paused=True).exists()

    def horizon(self) -> int:
        """Return the horizon as far as a second's looking shows it."""
        highest = highest_offset(self.alias)
        deadline = time.monotonic() + PROBE_TIMEOUT
        while self._horizon.probe(highest) < highest and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._horizon.value

    def accept(self, offset: int) -> None:
        """Raise ConfigurationError if a checkpoint says an offset that no stream of the group can have come to.

        Every end of a batch is stored before Spark can write it down, and forgotten by a reset: so this is a checkpoint
        from before the group, or the whole database, went back.
        """
        if offset > self._reachable:
            raise ConfigurationError(
                f"the checkpoint says that group {self.group!r} has read up to offset {offset}, and the database knows "
                f"nothing above {self._reachable} of it: the group was moved back, or the database was restored or "
                "failed over to a server that lacked some of it. To go on would skip messages that were never read: "
                f"give the query a new checkpoint, and it begins behind offset {self.settled}"
            )

    def settle(self, offset: int, planned: int | None = None) -> None:
        """Everything up to this offset has been committed by the sink: move the positions and watermarks there.
        planned: where the next batch will end.

        Always writes: once it has committed, whatever was visible before it is safe on the server's disk, too. Raises
        LeaseLost if the stream is no longer the owner, and then has changed nothing.
        """
        faults.run(self.alias, self._settle, offset, planned)
        self.settled = max(self.settled, offset)
        self._reachable = max(self._reachable, planned or 0)

    def _settle(self, offset: int, planned: int | None) -> None:
        for taken in self._owned:
            values = (offset, offset, offset, taken.id, taken.token)
            if execute(self.alias, ADVANCE, values).rowcount != 1:
                raise LeaseLost(
                    f"the stream is no longer the owner of group {self.group!r} in topic {taken.address.topic!r}: the "
                    "group was reset or removed, or another stream of it has been started"
                )
        if planned is not None:  # after the fence, and in the order of locks that a reset has
            self._groups().update(streamed_to=planned)
        if self._has_left:
            self._has_left = self._forget(offset)

    def _forget(self, offset: int) -> bool:
        """What consumers had left behind up to this offset has been read again; return whether there is more of it."""
        states, ranges = self._left(DeliveryState), self._left(BlockedRange)
        states.filter(message_offset__lte=offset).delete()
        ranges.filter(high__lte=offset).delete()
        ranges.filter(low__lt=offset).update(low=offset)
        return states.exists() or ranges.exists()

    def _left(self, model: type[DeliveryState] | type[BlockedRange]) -> Any:
        return model.objects.using(self.alias).filter(consumer_group=self.group, topic__in=self.topics)

    def _groups(self) -> Any:
        return ConsumerGroup.objects.using(self.alias).filter(consumer_group=self.group, topic__in=self.topics)

    def _reached(self) -> dict[str, int]:
        """Return, by topic, up to where the group can have come: to the end of the last batch that was planned, or to
        its lowest watermark."""
        planned = dict(self._groups().values_list("topic", "streamed_to"))
        return {
            topic: max(
                planned.get(topic, 0), min(taken.watermark for taken in self._owned if taken.address.topic == topic)
            )
            for topic in self.topics
        }

    def leave(self) -> None:
        """Give everything back, so that the next owner need not wait."""
        self._stopped.set()
        self._thread.join(10)
        faults.close_lost_connections()
        leave(self.alias, self.name)
        free(self.alias, self.name)

    def _settled_by_all(self, topic: str, floor: int) -> int:
        """Return the highest offset, at most the horizon, up to which no partition of a topic has anything to read."""
        words = dialect(self.alias)
        lowest = floor + 1
        for taken in self._owned:
            address = taken.address
            if address.topic != topic:
                continue
            place = words.place(address.topic, address.partition, address.priority, taken.watermark)
            found = execute(self.alias, NEXT, place).fetchone()
            if found is not None:
                lowest = min(lowest, found[0])
        return lowest - 1

    def _refuse_consumers(self) -> None:
        beats = SubscriberHeartbeat.objects.using(self.alias).alive()
        beats = beats.filter(consumer_group=self.group, topic__in=self.topics).exclude(subscriber__startswith=PREFIX)
        found = sorted(set(beats.values_list("subscriber", flat=True)[:5]))
        if found:
            raise ConfigurationError(
                f"group {self.group!r} has live consumers ({', '.join(found)}): stop them (one that was killed is "
                "forgotten after LEASE_DURATION), or give the stream a group of its own"
            )

    def _push_out_streams(self, topic: str) -> None:
        lock_topic(self.alias, topic)
        leases = PartitionLease.objects.using(self.alias).filter(topic=topic, consumer_group=self.group)
        if leases.filter(holder__startswith=PREFIX).exists():
            revoke(self.alias, self.group, topic)

    def _take(self, topic: str, floor: int) -> list[Taken]:
        info = topic_info(self.alias, topic)
        wanted = list(range(info.partitions))
        deadline = time.monotonic() + ACQUIRE_TIMEOUT
        owned: dict[int, Taken] = {}
        while True:
            for taken in acquire(
                self.alias,
                self.name,
                self.group,
                topic,
                wanted,
                priorities=info.priorities,
                lease_duration=settings.LEASE_DURATION,
                horizon=floor,
            ):
                owned[taken.id] = taken
            held = {taken.address.partition for taken in owned.values()}
            wanted = [partition for partition in range(info.partitions) if partition not in held]
            if not wanted:
                return list(owned.values())
            if time.monotonic() > deadline:
                free(self.alias, self.name)
                raise ConfigurationError(
                    f"partitions {wanted[:5]} of topic {topic!r} have another owner in group {self.group!r}: stop its "
                    "consumers, or give the stream a group of its own"
                )
            time.sleep(0.1)

    def _keep(self) -> None:
        """Beat and renew, until the stream ends. An owner that cannot is told so by its next settle."""
        try:
            while not self._stopped.wait(settings.HEARTBEAT_INTERVAL):
                try:
                    faults.close_lost_connections()
                    beat(self.alias, self.name, self._subscriptions, settings.LEASE_DURATION, activity="a Spark stream")
                    if renew(self.alias, self.name, settings.LEASE_DURATION) < self._leases:
                        logger.warning(line("stream_lost_leases", group=self.group, subscriber=self.name))
                except Error as error:
                    logger.warning(line("stream_heartbeat_failed", group=self.group, error=error))
        finally:
            connections.close_all()
