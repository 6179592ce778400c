"""One consumer in one process: its handler, the streams that it owns now, and what the tables say of its topic."""

from __future__ import annotations

from sqlqueue.consumers.handling import Handling
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core.stream import Address, Stream
from sqlqueue.leases.acquire import Taken
from sqlqueue.log.groups import Served


class Subscription:
    """See the module."""

    def __init__(self, alias: str, consumer: Consumer):
        self.alias, self.consumer = alias, consumer
        self.handling = Handling(alias, consumer)
        self.streams: dict[Address, Stream] = {}
        self.leaving: set[int] = set()  # partitions to give up as soon as nothing of them is in a handler's hands
        self.paused = False
        self.history = "failures"
        self.partitions = 0
        self.priorities = 1

    @property
    def place(self) -> tuple[str, str]:
        """The (group, topic)."""
        return self.consumer.group, self.consumer.topic

    @property
    def holding(self) -> set[int]:
        """The partitions that it holds."""
        return {address.partition for address in self.streams}

    def take_note(self, options: Served) -> None:
        """Follow the options that may change while running."""
        self.paused, self.history = options.paused, options.history
        self.partitions, self.priorities = options.partitions, options.priorities

    def adopt(self, taken: Taken, deadline: float, now: float) -> Stream:
        """Begin a stream's memory from what its acquisition has found."""
        stream = Stream(
            taken.address,
            self.consumer.manners,
            id=taken.id,
            token=taken.token,
            position=taken.position,
            watermark=taken.watermark,
            claimed=taken.claimed,
            rows=taken.rows,
            ranges=taken.ranges,
            now=now,
        )
        stream.deadline = deadline
        self.streams[taken.address] = stream
        return stream

    def of_partition(self, partition: int) -> list[Stream]:
        """Return the streams of a partition, one for each priority."""
        return [stream for address, stream in self.streams.items() if address.partition == partition]

    def drop(self, stream: Stream) -> None:
        """Forget a stream that is somebody else's now: its hands' outcomes are void."""
        stream.lost = True
        self.streams.pop(stream.address, None)
        if not self.of_partition(stream.address.partition):
            self.leaving.discard(stream.address.partition)
