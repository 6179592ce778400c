"""Settle notices: a process that waits for a message asks the consumer processes for a datagram once it is settled.

The question is a datagram with the message's offset, to the addresses in the heartbeat table; the notice is an empty
one, back to where the question came from. Each question is worth one notice and is forgotten after a few seconds, so a
flood of them brings no more than it has cost. As with the notifier, nothing depends on it: who waits polls, too.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType

from sqlqueue.conf import settings
from sqlqueue.core.outcomes import ACKED, DEAD
from sqlqueue.core.settle_plan import SettledAttempt
from sqlqueue.database.lock_timeouts import TableLocked, unless_locked
from sqlqueue.database.log import Log
from sqlqueue.log.notifier import AT_MOST, parsed
from sqlqueue.models.subscriber_heartbeat import AHEAD

ASKED_FOR = 5.0  # seconds for which a question counts; who still waits asks again sooner
FORGET_EVERY = 0.5  # seconds
MOST_QUESTIONS = 10_000  # that a process remembers
MOST_ASKED = 32  # consumer processes that are asked; what others settle is found by polling
# Of the living subscribers of a topic. Index: the heartbeats' topic.
ADDRESSES = f"""
    SELECT DISTINCT address FROM sqlqueue_subscriber_heartbeat
    WHERE topic = %s AND expires_at > {{now}} AND beat_at < {{later}} AND address > '' LIMIT {MOST_ASKED}
"""

Address = tuple[str, int]


class Questions:
    """The open questions of other processes to this one. The listener's thread adds them, the control thread answers.
    send: sends an empty datagram; None while nothing listens."""

    def __init__(self) -> None:
        self.send: Callable[[Address], None] | None = None
        self._asked: dict[int, dict[Address, float]] = {}  # by offset: until when
        self._look_again = 0.0  # when old ones may be looked for again: a flood is not to look at each of its datagrams
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, question: bytes, sender: Address) -> bool:
        """Remember a question, unless it is one too many; return False if it is none."""
        if len(question) > 19 or not question.isdigit():
            return False
        now = time.monotonic()
        with self._lock:
            if len(self._asked) >= MOST_QUESTIONS and now >= self._look_again:
                self._forget_old(now)
            offset = int(question)
            if offset in self._asked or len(self._asked) < MOST_QUESTIONS:
                those = self._asked.setdefault(offset, {})
                if sender in those or len(those) < MOST_ASKED:
                    those[sender] = now + ASKED_FOR
        return True

    def _forget_old(self, now: float) -> None:
        self._look_again = now + FORGET_EVERY
        self._asked = {
            at: left
            for at, those in self._asked.items()
            if (left := {address: until for address, until in those.items() if until > now})
        }

    def answer(self, settled: Iterable[SettledAttempt]) -> None:
        """Notify those that have asked for any of these messages, and forget the questions."""
        for attempt, outcome in settled:
            if attempt.offset not in self._asked or outcome.kind not in (ACKED, DEAD):
                continue
            with self._lock:
                those = self._asked.pop(attempt.offset, {})
            for address, until in those.items():
                if self.send is not None and until > time.monotonic():
                    self.send(address)


class SettleWatch:
    """Asks the consumer processes of a topic for notices, and waits for them. A context manager."""

    def __init__(self, log: Log, topic: str):
        self._log, self._topic = log, topic
        self._sockets: dict[Address, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._looked_at = float("-inf")

    def __enter__(self) -> SettleWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets."""
        for one in self._sockets.values():
            one.close()
        self._selector.close()

    def ask(self, offset: int) -> None:
        """Ask to be told when the message at this offset is settled. One statement now and then, for the addresses."""
        if not settings.WAKE:
            return
        if time.monotonic() - self._looked_at >= ASKED_FOR:
            self._look()
        for address, one in list(self._sockets.items()):
            try:
                one.send(b"%d" % offset)
            except OSError:  # it has gone
                self._drop(address)

    def wait(self, seconds: float) -> None:
        """Wait for a notice, at most so long."""
        if not self._sockets:
            time.sleep(seconds)
            return
        self._receive(seconds)

    async def wait_async(self, seconds: float) -> None:
        """The same on an event loop, which goes on meanwhile. Where that cannot watch sockets it only waits."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        watched: list[socket.socket] = []
        try:
            for one in self._sockets.values():
                loop.add_reader(one, woken.set)
                watched.append(one)
        except NotImplementedError:  # of Windows
            pass
        try:
            await asyncio.wait_for(woken.wait(), seconds)
        except asyncio.TimeoutError:
            return
        finally:
            for one in watched:
                loop.remove_reader(one)
        self._receive(0)

    def _receive(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            try:
                key.fileobj.recv(1)  # type: ignore[union-attr]  # the content is not used
            except OSError:
                self._drop(key.data)

    def _look(self) -> None:
        """Connect to the consumer processes that are new: a connected socket receives from its peer only."""
        self._looked_at, ahead = time.monotonic(), round(AHEAD.total_seconds() * 1_000_000)
        try:
            found = unless_locked(self._log, ADDRESSES, (self._topic, ahead), seconds=AT_MOST)
        except TableLocked:
            return
        for (text,) in found:
            address = parsed(text)
            if address is None or address in self._sockets:
                continue
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.setblocking(False)
            try:
                one.connect(address)
            except OSError:
                one.close()
                continue
            self._sockets[address] = one
            self._selector.register(one, selectors.EVENT_READ, address)

    def _drop(self, address: Address) -> None:
        one = self._sockets.pop(address)
        self._selector.unregister(one)
        one.close()
