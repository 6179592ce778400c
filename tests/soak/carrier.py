"""What a proxy's thread does: it listens, carries between clients and a server, and does the harm that it is told."""

import errno
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from tests.soak.links import Link, Way

HOST = "127.0.0.1"
AT_ONCE = 256 * 1024  # bytes
BACKLOG = 512
ANSWER_TIMEOUT = 60.0
FOR_EVER = float("inf")


class Carrier:
    """A loop over sockets. Other threads may call do(), read the counters, and close() it when run() has returned."""

    def __init__(self, target_port: int) -> None:
        self._target = (HOST, target_port)
        # Bound and never listening: it keeps the port while connections to it are refused.
        self._reserved = socket_at(0)
        self.port: int = self._reserved.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._links: set[Link] = set()
        self._late: set[Link] = set()  # those in which something waits for its time
        self._buffer = memoryview(bytearray(AT_ONCE))
        self._orders: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._bell, self._ringer = socket.socketpair()
        self._selector.register(self._bell, selectors.EVENT_READ, self._heed)
        self._running = True
        self._listener: socket.socket | None = None
        self._refused_until = self._held_until = 0.0
        self._latency = 0.0
        self._losing: re.Pattern[bytes] | None = None
        self.connections = self.cuts = self.lost = self.carried = 0
        self._listen()

    # -- orders -------------------------------------------------------------------------------------------------------

    def do(self, order: Callable[[], Any]) -> Any:
        """Have the proxy's thread do something, and return what that returns."""
        answer: Future[Any] = Future()
        self._orders.append((order, answer))
        self._ringer.send(b".")
        return answer.result(ANSWER_TIMEOUT)

    def _heed(self, _events: int) -> None:
        self._bell.recv(1)
        order, answer = self._orders.popleft()
        try:
            answer.set_result(order())
        except Exception as error:
            answer.set_exception(error)

    def stop(self) -> None:
        """End the loop."""
        self._running = False

    def cut_all(self) -> int:
        """Reset all links; return how many there were."""
        links = list(self._links)
        for link in links:
            self._cut(link)
        return len(links)

    def refuse(self, seconds: float) -> None:
        """Listen no more."""
        self._refused_until = time.monotonic() + seconds
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def hold(self, seconds: float) -> None:
        """Look at no link."""
        self._held_until = time.monotonic() + seconds
        self._watch_all()

    def be_late(self, seconds: float) -> None:
        """Give what is read from now on so much time."""
        self._latency = seconds

    def lose(self, to: bytes) -> None:
        """Look for requests in which this expression is found."""
        self._losing = re.compile(to)

    def restore(self) -> None:
        """End all faults."""
        self._latency, self._losing = 0.0, None
        for link in self._links:
            link.asked = False
        self._refused_until = min(self._refused_until, time.monotonic())
        self._held_until = min(self._held_until, time.monotonic())
        self._end_what_is_over()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Carry until stop()."""
        try:
            while self._running:
                for key, events in self._selector.select(self._pause()):
                    key.data(events)
                self._end_what_is_over()
                self._carry_what_is_due()
        finally:
            self.close()

    def close(self) -> None:
        """Reset all links, and give everything back."""
        for link in list(self._links):
            self._drop(link, reset=True)
        for each in (self._listener, self._reserved, self._bell, self._ringer):
            if each is not None:
                each.close()
        self._selector.close()
        while self._orders:
            self._orders.popleft()[1].set_exception(RuntimeError("the proxy has ended"))

    def _pause(self) -> float | None:
        """Return for how many seconds nothing but news of a socket needs this thread; None: for ever."""
        moments = [until for until in (self._refused_until, self._held_until) if until]
        if not self._held_until:
            moments += [way.due for link in self._late for way in link.ways if way.due is not None]
        first = min(moments, default=FOR_EVER)
        return None if first == FOR_EVER else max(0.0, first - time.monotonic())

    def _end_what_is_over(self) -> None:
        now = time.monotonic()
        if 0 < self._refused_until <= now:
            self._refused_until = 0.0
            self._listen()
        if 0 < self._held_until <= now:
            self._held_until = 0.0
            self._watch_all()

    def _carry_what_is_due(self) -> None:
        if self._held_until:
            return
        now = time.monotonic()
        for link in list(self._late):
            if any(way.due is not None and way.due <= now for way in link.ways):
                self._turn(link, None, 0)

    # -- links --------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._listener = socket_at(self.port)
        self._listener.listen(BACKLOG)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _events: int) -> None:
        if self._listener is None:  # refused by an order that came in the same round
            return
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client has gone
        server = socket.socket()
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, server)
        self._links.add(link)
        self.connections += 1
        if server.connect_ex(self._target) in (0, errno.EINPROGRESS):
            self._watch(link)
        else:
            self._drop(link, reset=True)

    def _turn(self, link: Link, end: socket.socket | None, events: int) -> None:
        """Do what the news of one end ask for, and send what is due."""
        if link.closed or self._held_until:  # by what came before it in the same round
            return
        try:
            if link.connecting and events:
                link.connecting = False
                if link.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise ConnectionRefusedError
            elif end is not None and events & selectors.EVENT_READ:
                self._read(link, link.way_from(end))
            if link.closed:
                return
            for way in link.ways:
                way.flush(time.monotonic())
        except OSError:
            self._drop(link, reset=True)  # what the one end does is done to the other
            return
        if all(way.over for way in link.ways):
            self._drop(link, reset=False)
        else:
            self._watch(link)

    def _read(self, link: Link, way: Way) -> None:
        piece = way.read(self._buffer)
        if not piece:
            return
        if self._losing is not None:
            if way is link.to_client and link.asked:
                self.lost += 1
                self._cut(link)
                return
            if way is link.to_server and self._losing.search(piece):
                link.asked = True
        self.carried += len(piece)
        now = time.monotonic()
        way.carry(piece, now + self._latency, now)

    def _cut(self, link: Link) -> None:
        self.cuts += 1
        self._drop(link, reset=True)

    def _drop(self, link: Link, reset: bool) -> None:
        for end in link.watched:
            self._selector.unregister(end)
        link.close(reset)
        self._links.discard(link)
        self._late.discard(link)

    def _watch(self, link: Link) -> None:
        """Let the selector tell what the link waits for."""
        for end in (link.client, link.server):
            before, wanted = link.watched.get(end, 0), 0 if self._held_until else link.interest(end)
            if wanted == before:
                continue
            if not before:
                self._selector.register(end, wanted, partial(self._turn, link, end))
            elif not wanted:
                self._selector.unregister(end)
            else:
                self._selector.modify(end, wanted, partial(self._turn, link, end))
            link.watched[end] = wanted
            if not wanted:
                del link.watched[end]
        if any(way.due is not None for way in link.ways):
            self._late.add(link)
        else:
            self._late.discard(link)

    def _watch_all(self) -> None:
        for link in list(self._links):
            self._watch(link)


def socket_at(port: int) -> socket.socket:
    """Return a socket that is bound to this port of the loopback (0: to a free one), maybe beside another of ours."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    bound.setblocking(False)
    return bound
