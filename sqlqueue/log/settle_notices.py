"""Settle notices: a process that waits for a message asks the consumer processes for a datagram once it is settled.

The question is a datagram with the message's offset, to the addresses in the heartbeat table; the notice is an empty
one, back to where the question came from. Each question is worth one notice and is forgotten after a few seconds, so a
flood of them brings no more than it has cost. As with the notifier, nothing depends on it: who waits polls, too.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from sqlqueue.conf import settings
from sqlqueue.core.outcomes import ACKED, DEAD
from sqlqueue.core.settle_plan import SettledAttempt
from sqlqueue.database.lock_timeouts import TableLocked, unless_locked
from sqlqueue.database.log import Log
from sqlqueue.log.notifier import AT_MOST, parsed
from sqlqueue.models.subscriber import AHEAD

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
    """Asks the consumer processes of a topic for notices, and waits for them."""

    def __init__(self, log: Log, topic: str):
        self._log, self._topic = log, topic
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._addresses: list[Address] = []
        self._looked_at = float("-inf")

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def ask(self, offset: int) -> None:
        """Ask to be told when the message at this offset is settled. One statement now and then, for the addresses."""
        if not settings.WAKE:
            return
        if time.monotonic() - self._looked_at >= ASKED_FOR:
            self._look()
        for address in self._addresses:
            with suppress(OSError):  # no route, buffer full: polling is the safety net
                self._socket.sendto(b"%d" % offset, socket.MSG_DONTWAIT, address)

    def wait(self, seconds: float) -> None:
        """Wait for a notice, at most so long. Any datagram counts as one: it brings a look too many at worst."""
        if not self._addresses:
            time.sleep(seconds)
            return
        self._socket.settimeout(seconds)
        with suppress(OSError):
            self._socket.recv(1)

    async def wait_async(self, seconds: float) -> None:
        """The same on an event loop, which goes on meanwhile. Where that cannot watch sockets it only waits."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        with suppress(NotImplementedError):  # of Windows
            loop.add_reader(self._socket, woken.set)
        try:
            await asyncio.wait_for(woken.wait(), seconds)
            self._socket.recv(1)
        except (asyncio.TimeoutError, OSError):
            return
        finally:
            with suppress(NotImplementedError):
                loop.remove_reader(self._socket)

    def _look(self) -> None:
        """Read where the consumer processes are."""
        self._looked_at, ahead = time.monotonic(), round(AHEAD.total_seconds() * 1_000_000)
        with suppress(TableLocked):
            found = unless_locked(self._log, ADDRESSES, (self._topic, ahead), seconds=AT_MOST)
            self._addresses = [address for (text,) in found if (address := parsed(text))]
