"""How messages come into memory: received from a read, recalled by their rows, taken up from a blocked range, loaded.
Or they are found to be gone.

The position is passed as a value; a message at or below it is outside the window.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlqueue.core.membership import HEADER, batch_of
from sqlqueue.core.partition.delays import Delays
from sqlqueue.core.partition.in_doubt import InDoubt
from sqlqueue.core.partition.ordering import BEHIND, HELD, READY, SETTLED, Entry, OrderingQueue
from sqlqueue.core.partition.queues import OrderingQueues
from sqlqueue.core.partition.rows import Rows
from sqlqueue.core.partition.sieve import Sieve
from sqlqueue.core.partition.transitions import Transitions
from sqlqueue.core.partition.writes import WriteBuffer
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT, FetchedMessage, Filtered, RowWrite, StoredRow


class Arrivals:
    """Puts messages among those in memory."""

    def __init__(
        self,
        group: str,
        sieve: Sieve,
        messages: Transitions,
        queues: OrderingQueues,
        delays: Delays,
        in_doubt: InDoubt,
        rows: Rows,
        writes: WriteBuffer,
    ):
        self._group, self._sieve = group, sieve
        self._messages, self._entries = messages, messages.entries
        self._queues, self._delays, self._in_doubt = queues, delays, in_doubt
        self._rows, self._writes = rows, writes

    def receive(self, messages: Iterable[FetchedMessage], wanted: bool | None = None) -> list[int]:
        """Add messages that were read above the position; return the offsets of those that were not in memory already.
        wanted: what the filter has said of them; None: it is asked."""
        entries, receive = self._entries, self._queues.receive
        if wanted is None and not self._sieve.filters:
            wanted = True
        added: list[int] = []
        for message in messages:
            offset, headers, target = message[0], message[4], message[6]
            if offset in entries:
                continue
            added.append(offset)
            if target and target != self._group:  # there is nothing to dispatch
                entries[offset] = Entry(offset, None, SETTLED, None)
                self._writes.acks[offset] = None
            elif wanted or (wanted is None and self._sieve.wants(message)):
                entries[offset] = receive(message)
                if headers and HEADER in headers:
                    self._writes.join(offset, headers)
            else:
                self._leave_out(message)
        return added

    def _leave_out(self, message: FetchedMessage) -> None:
        offset, headers = message.offset, message.headers
        # A member of a batch that its key's range comes to cover keeps an acked row there, and is counted once.
        key = self._queues.covering_key(message.key) if batch_of(headers) else ""
        self._entries[offset] = Entry(offset, None, SETTLED, None, key)
        self._writes.acks[offset] = Filtered.FILTERED
        self._writes.join(offset, headers)

    def recall(self, row: StoredRow, position: int, now: float) -> None:
        """Add a stored row. One that is acked and at or below the position needs no entry."""
        if row.acked and row.headers:
            self._writes.join(row.offset, row.headers, dead=row.in_flight < 0)
        if row.acked and row.offset <= position:
            self._rows.add_acked_unless_kept(row.offset, row.key, position)
            return
        queue = None if row.acked else self._queues.queue_of(row.key)
        entry = Entry(row.offset, queue, HELD, None, self._queues.covering_key(row.key))
        entry.count, entry.mark, entry.due = row.retry_count, row.in_flight, now + row.remaining
        self._entries[row.offset] = entry
        if row.acked:
            entry.row, entry.state = True, SETTLED
            self._rows.add_acked(row.offset)
            return
        if queue is not None:
            queue.add(entry)
        self._rows.add(entry)
        if row.in_flight:
            entry.due = now
            self._in_doubt.add(entry)
        else:
            self._delays.add(entry)

    def take_up(
        self, queue: OrderingQueue, row: StoredRow | None, message: FetchedMessage, position: int, now: float
    ) -> None:
        """Add the next message of a blocked range. It gets its row when it is dispatched, unless an operator has
        written one. What was settled since the last plan has the row that the next one writes."""
        if (written := self._writes.rows.get(message.offset)) is not None:
            row = StoredRow(message.offset, written.acked, written.in_flight, written.retry_count, 0.0, queue.name)
        if row is not None:
            self.recall(row._replace(key=queue.name), position, now)
        elif message.target_group in ("", self._group) and self._sieve.wants(message):
            entry = self._entries[message.offset] = Entry(message.offset, queue, BEHIND, None, queue.name)
            self._queues.make_ready(entry, message, outside=True)
            queue.add(entry)
            self._writes.join(message.offset, message.headers)
        elif message.target_group in ("", self._group) and batch_of(message.headers):
            # Left out by the filter: counted with its row, which goes once the range has passed it.
            self._writes.rows[message.offset] = RowWrite(message.offset, True, NOT_IN_FLIGHT, 1)
            self._writes.join(message.offset, message.headers)
            self._rows.add_acked_unless_kept(message.offset, queue.name, position)

    def load_blocked(
        self, entry: Entry, row: StoredRow | None, message: FetchedMessage | None, position: int, now: float
    ) -> None:
        """Load a message that was blocked: it is now the first of its ordering queue, or follows the first."""
        if message is None:
            self._writes.leave(entry.offset)
            self._messages.settle(entry, None, position, now)
        elif row is None:
            self._queues.make_ready(entry, message)
            self._writes.join(entry.offset, message.headers)
        else:  # an operator has written it
            self._messages.forget(entry)
            self.recall(row, position, now)

    def load(
        self, offset: int, row: StoredRow | None, message: FetchedMessage | None, position: int, now: float
    ) -> None:
        """Apply the present values of a row that was due or in doubt, and its message."""
        entry = self._entries.get(offset)
        self._delays.was_loaded(offset)
        if entry is None or entry.state != HELD:
            return
        entry.limited = False
        if message is None:
            self._writes.leave(offset)
        else:
            self._writes.join(offset, message.headers)
        if row is None or row.acked or message is None:
            self._settle_gone(entry, row, position, now)
            return
        if not self._sieve.wants(message):  # a former owner had another filter, or had not settled all that it read
            self._settle_gone(entry, row, position, now, Filtered.FILTERED)
            return
        entry.count = row.retry_count
        if entry.mark:
            entry.mark = row.in_flight
            if not entry.mark:
                self._in_doubt.remove(entry)
        if entry.mark:
            entry.message, entry.size = message, message.size
            return
        if row.remaining > 0:
            entry.due = now + row.remaining
            self._delays.add(entry)
        else:
            self._queues.came_due(entry, message)

    def _settle_gone(
        self, entry: Entry, row: StoredRow | None, position: int, now: float, settled: Filtered | None = None
    ) -> None:
        """Settle a message that was acked by a commit whose reply was lost, or deleted by an operator, or is left out
        by the filter."""
        entry.row = row is not None
        if row is not None:
            self._rows.add_acked_unless_kept(entry.offset, entry.key, position)
            if not row.acked:
                self._writes.rows[entry.offset] = RowWrite(entry.offset, True, NOT_IN_FLIGHT, row.retry_count)
        self._messages.settle(entry, settled, position, now)

    def reschedule(self, offset: int, now: float) -> None:
        """Make a waiting row due now, as it is in the database."""
        entry = self._entries.get(offset)
        if entry is not None and entry.state == HELD and entry.due > now and offset not in self._writes.rows:
            entry.due = now
            self._delays.add(entry)

    def vanish(self, offset: int, position: int, now: float) -> None:
        """Settle a message that was deleted from the log: there is nothing to dispatch."""
        entry = self._entries[offset]
        if entry.state in (READY, BEHIND) and not entry.row:
            self._writes.leave(offset)
            self._messages.settle(entry, None, position, now)
