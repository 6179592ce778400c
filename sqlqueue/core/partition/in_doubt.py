"""Messages in doubt: in flight with a former owner when it ended. They are dispatched alone, one by one."""

from __future__ import annotations

from collections import deque
from typing import Final

from sqlqueue.core.partition.key_limit import LimitedQueue
from sqlqueue.core.partition.ordering import Entry

MOST_DEATHS: Final = 5  # in a row, after which a message without max_attempts is a dead letter


class InDoubt:
    """The messages in doubt, ascending as they were recalled."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._unseen: deque[int] = deque()  # those that take_unseen() has not returned

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Add a message whose row is in flight."""
        self._entries[entry.offset] = entry
        self._unseen.append(entry.offset)

    def take_unseen(self, most: int) -> list[int]:
        """Return the next messages, at most `most`, which it has not returned before."""
        return [self._unseen.popleft() for _ in range(min(most, len(self._unseen)))]

    def get(self, offset: int) -> Entry | None:
        """Return a message if it is in doubt."""
        return self._entries.get(offset)

    def remove(self, entry: Entry) -> None:
        """Forget a message: it is settled, dispatched, or its row is in flight no more."""
        self._entries.pop(entry.offset, None)

    def first(self) -> int | None:
        """Return the offset of a message in doubt that is first in its ordering queue, if any."""
        for offset, entry in self._entries.items():
            queue = entry.queue
            if queue is None or isinstance(queue, LimitedQueue) or (queue.head is entry and not queue.busy):
                return offset
        return None
