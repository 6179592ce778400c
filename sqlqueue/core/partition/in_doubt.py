"""Messages in doubt: in flight with a former owner when it ended. They are dispatched alone, one by one."""

from __future__ import annotations

from typing import Final

from sqlqueue.core.partition.ordering import Entry

MOST_DEATHS: Final = 5  # in a row, after which a message without max_attempts is a dead letter


class InDoubt:
    """The messages in doubt, ascending as they were recalled."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Add a message whose row is in flight."""
        self._entries[entry.offset] = entry

    def get(self, offset: int) -> Entry | None:
        """Return a message if it is in doubt."""
        return self._entries.get(offset)

    def remove(self, entry: Entry) -> None:
        """Forget a message: it is settled, dispatched, or its row is in flight no more."""
        self._entries.pop(entry.offset, None)

    def first(self) -> int | None:
        """Return the offset of a message in doubt that is first in its ordering queue, if any."""
        for offset, entry in self._entries.items():
            if entry.queue is None or (entry.queue.head is entry and not entry.queue.busy):
                return offset
        return None
