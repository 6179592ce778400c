"""Following: a process that keeps up with the log, and owns most of what comes, reads what is new with one statement.

Otherwise it takes three: where the log ends, which partitions have something new, and a read of each of these, for each
group. What others own is read for nothing, so this is left to who owns enough.
"""

from __future__ import annotations

from typing import Final

from sqlqueue.consumers.working_set import Stream
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import Found, Read
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.log.newest import Newest, read_newest
from sqlqueue.log.portions import withheld

NEWEST_AT_ONCE: Final = 256  # messages: of more it is not known what else there is, so they are a backlog
OWN_PART: Final = 0.5  # of the messages that were seen lately
SEEN_LATELY: Final = 200  # messages, about


class Following:
    """Reads the newest messages, and keeps them for the reads of one iteration."""

    def __init__(self, alias: str, server: ServerIdentity):
        self.alias, self.server = alias, server
        self._own = self._seen = 0.0  # messages, lately: that it could take so, and all
        self._messages: dict[Stream, list[FetchedMessage]] = {}  # whatever the log has above _above
        self._above = 0

    @property
    def worth_it(self) -> bool:
        """Whether this process can take half of what comes so."""
        return self._own >= OWN_PART * self._seen

    def measure(self, own: int, seen: int) -> None:
        """Record that of so many messages that were seen so many are of partitions that this process has, and has read
        up to there."""
        weight = SEEN_LATELY / (SEEN_LATELY + seen)  # what was seen before counts less and less
        self._own, self._seen = weight * (self._own + own), weight * (self._seen + seen)

    def read(self, above: int) -> Newest | None:
        """Return the messages of the whole log above an offset; None if there are none, or too many."""
        newest = read_newest(self.alias, above, NEWEST_AT_ONCE, self.server)
        return newest if 0 < newest.total < NEWEST_AT_ONCE else None

    def keep(self, newest: Newest, above: int) -> None:
        """Keep these messages until `drop`."""
        self._messages, self._above = newest.messages, above

    def drop(self) -> None:
        """Forget the messages: the log may have more."""
        self._messages = {}

    def already_read(self, ref: PartitionRef, read: Read) -> Found | None:
        """Return what a read would find, if that was read, and it may bring as much."""
        if not self._messages or read.start < self._above or read.looks or read.sift is not None or ref.slices > 1:
            return None
        some = self._messages.get((ref.topic, ref.partition, ref.priority), [])
        messages = [message for message in some if message.offset > read.start]
        if len(messages) >= read.limit or withheld(messages):
            return None
        if read.size is not None and sum(message.size for message in messages) > read.size:
            return None
        return Found([], messages)
