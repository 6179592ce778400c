"""A Spark stream's membership in its consumer group: it owns all partitions, by leases and fencing tokens.

A group with live consumer processes is refused. Of two Spark streams the newer one takes over, as when Spark restarts a
query; the next settle of the older one finds that its tokens are stale. Positions move up to what the stream's sink has
committed, and nothing is claimed beyond: messages that were in flight when a stream ended are delivered again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.plan import holds_any
from sqlqueue.contrib.spark.project import Project
from sqlqueue.contrib.spark.whole_topic import RenewalLoop, take_all
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity, select
from sqlqueue.exceptions import ConfigurationError, LeaseLost
from sqlqueue.leases.acquire import AcquiredPartition
from sqlqueue.leases.heartbeat import subscriber_name
from sqlqueue.leases.release import shorten_stale
from sqlqueue.log import fence
from sqlqueue.log.groups import LATEST, lock_topic, register_at, revoke
from sqlqueue.log.topics import topic_info
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, PartitionLease, SubscriberHeartbeat, Topic
from sqlqueue.models.subscriber import STREAM

logger = logging.getLogger("sqlqueue")

# The next message of a partition after an offset. Index: (topic, partition, priority, offset).
NEXT = 'SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {ascending} LIMIT 1'
ACQUIRE_TIMEOUT = 10.0  # seconds: another transaction may still hold an offset row
PROBE_TIMEOUT = 1.0  # seconds for which one look at the horizon may last


class Membership:
    """One run of a streaming query, as the only subscriber of its group in its topics; a thread renews it."""

    def __init__(
        self, log: Log, group: str, topics: Sequence[str], start: str, horizon_timeout: float, former: str = ""
    ):
        """former: the name under which this stream was a member before; another stream that has joined since is not
        replaced, and LeaseLost raised."""
        self._former = former
        self.log, self.group, self.topics = log, group, tuple(topics)
        self.name = STREAM + subscriber_name()
        self.server = ServerIdentity(log)
        self._horizon = Horizon(log, self.server)
        floor = self._horizon.wait(horizon_timeout)
        for topic in self.topics:
            register_at(log, group, topic, floor if start == LATEST else 0, self.server)
        self._refuse_consumers()
        shorten_stale(log, settings.LEASE_DURATION)  # there may be no consumer process to do it
        self._owned: list[AcquiredPartition] = []
        for topic in self.topics:
            retries.run(log, self._revoke_other_streams, topic)
            self._owned += self._take(topic, floor)
        self._leases = len({(taken.ref.topic, taken.ref.partition) for taken in self._owned})
        self._has_remains = self._remains(BlockedRange).exists() or any(taken.rows for taken in self._owned)
        settled = {topic: self._settled_by_all(topic, floor) for topic in self.topics}
        self.settled = min(settled.values())
        self._reachable = min(max(offset, settled[topic]) for topic, offset in self._reached().items())
        self._renewing = RenewalLoop(
            log,
            self.name,
            [(group, topic) for topic in topics],
            settings.HEARTBEAT_INTERVAL,
            settings.LEASE_DURATION,
            self._not_renewed,
            self._renewed,
            activity="a Spark stream",
        )
        self._renewing.start()

    def paused(self) -> bool:
        """Tell whether the group, or one of the topics, is paused."""
        topics = Topic.objects.using(self.log.alias).filter(name__in=self.topics)
        return self._groups().filter(paused=True).exists() or topics.filter(paused=True).exists()

    def wait_for_horizon(self, timeout: float) -> int:
        """Return the present horizon. Raises HorizonUnknown if a transaction that publishes stays open so long."""
        return self._horizon.wait(timeout)

    def horizon(self) -> int:
        """Return the horizon, after probing for at most a second."""
        highest = highest_offset(self.log, self.server)
        deadline = time.monotonic() + PROBE_TIMEOUT
        while self._horizon.probe(highest) < highest and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._horizon.value

    def accepted(self, offset: int) -> int:
        """Return a checkpoint's offset. Raises ConfigurationError for one that no stream of the group can have reached.

        The end of each batch is stored before Spark can write it to its checkpoint, and a move of the group deletes
        it: so such a checkpoint is older than a rewind of the group or a restore of the database.
        """
        if offset > self._reachable:
            raise ConfigurationError(
                f"the checkpoint says that group {self.group!r} has read up to offset {offset}, and the database knows "
                f"nothing above {self._reachable} of it: the group was rewound, or the database was restored or "
                "failed over to a server that lacked some of it. To continue would skip messages that were never read: "
                f"give the query a new checkpoint and a new output folder, and it begins after offset {self.settled}"
            )
        return offset

    def settle(self, offset: int, planned: int | None = None, checkpoint: str = "") -> None:
        """Move the positions and watermarks to `offset`, up to which the sink has committed everything.

        planned: the end of the next batch; checkpoint: the identity of the query's. This writes even if nothing moves:
        once it has committed, everything that was visible before is on the server's disk. Raises LeaseLost, and changes
        nothing, if the stream is no longer the owner.
        """
        retries.run(self.log, self._settle, offset, planned, checkpoint)
        self.settled = max(self.settled, offset)
        self._reachable = max(self._reachable, planned or 0)

    def run_again(self, planned: int, checkpoint: str) -> None:
        """Let a batch be the group's last one unless it is: Spark runs it again, and another query may have planned one
        since."""
        if self._groups().exclude(streamed_to=planned, streamed_by=checkpoint).exists():
            self.settle(self.settled, planned, checkpoint)

    def was_read(self, end: int, checkpoint: str) -> bool:
        """Tell whether a task of this batch, the group's last one, has read."""
        return self._groups().filter(streamed_to=end, streamed_by=checkpoint, streamed_read=True).exists()

    def _settle(self, offset: int, planned: int | None, checkpoint: str) -> None:
        for taken in self._owned:
            if not fence.advance(self.log, taken, offset, offset, offset):
                raise LeaseLost(
                    f"the stream is no longer the owner of group {self.group!r} in topic {taken.ref.topic!r}: the "
                    "group was moved or removed, or another stream of it was started"
                )
        if planned is not None:  # after the fence, and with the lock order of a move
            self._groups().update(streamed_to=planned, streamed_by=checkpoint, streamed_read=False)
        if self._has_remains:
            self._has_remains = self._forget(offset)

    def _forget(self, offset: int) -> bool:
        """Delete rows that consumers have left up to `offset`, now read again; return whether there are more."""
        states, ranges = self._remains(DeliveryState), self._remains(BlockedRange)
        states.filter(message_offset__lte=offset).delete()
        ranges.filter(high__lte=offset).delete()
        ranges.filter(low__lt=offset).update(low=offset)
        return states.exists() or ranges.exists()

    def _remains(self, model: type[DeliveryState] | type[BlockedRange]) -> Any:
        return model.objects.using(self.log.alias).filter(consumer_group=self.group, topic__in=self.topics)

    def _groups(self) -> Any:
        return ConsumerGroup.objects.using(self.log.alias).filter(consumer_group=self.group, topic__in=self.topics)

    def _reached(self) -> dict[str, int]:
        """Return, by topic, the highest offset that the group can have reached: the end of the last planned batch, or
        its lowest watermark."""
        planned = dict(self._groups().values_list("topic", "streamed_to"))
        return {
            topic: max(planned.get(topic, 0), min(taken.watermark for taken in self._owned if taken.ref.topic == topic))
            for topic in self.topics
        }

    def abandon(self) -> None:
        """Stop renewing: the server is not there, or is another one."""
        self._renewing.stop()

    def leave(self) -> None:
        """Stop renewing and release the leases, so that the next owner does not wait."""
        self._renewing.leave()

    def _settled_by_all(self, topic: str, floor: int) -> int:
        """Return the highest offset, at most `floor`, up to which no partition of a topic has a message to read."""
        sql = self.log.dialect
        lowest = floor + 1
        for taken in self._owned:
            address = taken.ref
            if address.topic != topic:
                continue
            parameters = sql.range_values(address.topic, address.partition, address.priority, taken.watermark)
            lowest = min([lowest, *(offset for (offset,) in select(self.log, NEXT, parameters, self.server, 1, 0))])
        return lowest - 1

    def _refuse_consumers(self) -> None:
        beats = SubscriberHeartbeat.objects.using(self.log.alias).alive()
        beats = beats.filter(consumer_group=self.group, topic__in=self.topics).exclude(subscriber__startswith=STREAM)
        found = sorted(set(beats.values_list("subscriber", flat=True)[:5]))
        if found:
            raise ConfigurationError(
                f"group {self.group!r} has live consumers ({', '.join(found)}): stop them (a killed one counts as "
                "alive for LEASE_DURATION), or give the stream a group of its own"
            )

    def _revoke_other_streams(self, topic: str) -> None:
        lock_topic(self.log, topic)
        leases = PartitionLease.objects.using(self.log.alias).filter(topic=topic, consumer_group=self.group)
        streams = leases.filter(holder__startswith=STREAM, valid_until__gt=DatabaseNow())
        if self._former and streams.exclude(holder=self._former).exists():
            raise LeaseLost(f"another stream of group {self.group!r} was started, and owns topic {topic!r} now")
        if leases.filter(holder__startswith=STREAM).exists():
            revoke(self.log, self.group, topic, falls=False)

    def _take(self, topic: str, floor: int) -> list[AcquiredPartition]:
        return take_all(
            self.log,
            self.name,
            self.group,
            topic,
            priorities=topic_info(self.log, topic).priorities,
            horizon=floor,
            server=self.server,
            deadline=time.monotonic() + ACQUIRE_TIMEOUT,
            refused=lambda others: ConfigurationError(
                f"partitions {sorted(others)[:5]} of topic {topic!r} have another owner in group {self.group!r}: stop "
                "its consumers, or give the stream a group of its own"
            ),
        )

    def _renewed(self, leases: int) -> None:
        if leases < self._leases:
            logger.warning(logfmt("stream_lost_leases", group=self.group, subscriber=self.name))

    def _not_renewed(self, error: Error) -> None:
        logger.warning(logfmt("stream_heartbeat_failed", group=self.group, error=error))


def refuse_skipped(
    project: Project,
    members: Mapping[str, Membership],
    options: SourceOptions,
    done: Mapping[str, int],
    checkpoint: str,
) -> None:
    """Raise ConfigurationError if the group has messages in the last batch, which ends at `done`, and no task has read
    any: a sink that knows its batches by number, as Spark's files do, has skipped it. checkpoint: the identity of the
    query's."""
    last = {database: member for database, member in members.items() if done[database] > member.settled}
    if any(member.was_read(done[database], checkpoint) for database, member in last.items()):
        return
    for database, member in last.items():
        with project.at(database):
            if holds_any(member.log, options, member.settled + 1, done[database], member.server):
                raise ConfigurationError(
                    f"group {member.group!r} has messages after offset {member.settled} up to {done[database]}, and no "
                    "task has read them: the sink has skipped the batch. A sink that knows its batches by number, as "
                    "Spark's files do, takes the first ones of a new checkpoint for those that it has. Nothing of the "
                    "batch is settled: give the query a new checkpoint and a new output folder, and it begins after "
                    f"offset {member.settled}"
                )
