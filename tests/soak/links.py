"""One client's connection through a proxy, and the connection to the server that was made for it."""

import contextlib
import selectors
import socket
import struct
from collections import deque
from dataclasses import dataclass, field

MOST_WAITING = 1024 * 1024  # bytes of one direction that may wait; then their sender has to
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 seconds


@dataclass(slots=True, eq=False)
class Way:
    """One direction: what was read from `source` and waits for `target`, each piece with the moment that it is due."""

    source: socket.socket
    target: socket.socket
    waiting: deque[tuple[float, memoryview]] = field(default_factory=deque)
    size: int = 0
    ended: bool = False  # the source has said that no more comes
    over: bool = False  # and the target has been told, behind all the rest
    stuck: bool = False  # the target takes no more now

    def read(self, buffer: memoryview) -> memoryview | None:
        """Return what the source has sent, empty at its end; None if there is nothing yet."""
        try:
            count = self.source.recv_into(buffer)
        except BlockingIOError:
            return None
        self.ended = not count
        return buffer[:count]

    def carry(self, piece: memoryview, due: float, now: float) -> None:
        """Send a piece on, or keep a copy until it is due and the target takes it."""
        if due <= now and not self.waiting:
            piece = piece[self._send(piece) :]
        if piece:
            self.waiting.append((due, memoryview(bytes(piece))))
            self.size += len(piece)

    def flush(self, now: float) -> None:
        """Send what is due, and the end behind it."""
        self.stuck = False
        while self.waiting and not self.stuck and self.waiting[0][0] <= now:
            due, piece = self.waiting.popleft()
            sent = self._send(piece)
            self.size -= sent
            if sent < len(piece):
                self.waiting.appendleft((due, piece[sent:]))
        if self.ended and not self.waiting and not self.over:
            self.over = True
            self.target.shutdown(socket.SHUT_WR)

    @property
    def due(self) -> float | None:
        """When the next piece is due that waits for its time alone."""
        return self.waiting[0][0] if self.waiting and not self.stuck else None

    def _send(self, piece: memoryview) -> int:
        try:
            sent = self.target.send(piece)
        except BlockingIOError:
            sent = 0
        self.stuck = sent < len(piece)
        return sent


class Link:
    """Both directions between a client and a server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.to_server, self.to_client = Way(client, server), Way(server, client)
        self.ways = (self.to_server, self.to_client)
        self.connecting = True
        self.asked = False  # a request has been carried whose answer is to be lost
        self.closed = False
        self.watched: dict[socket.socket, int] = {}  # the events that a selector looks for

    def interest(self, end: socket.socket) -> int:
        """Return which events of one of its sockets it waits for."""
        if self.connecting:
            return selectors.EVENT_WRITE if end is self.server else 0
        coming, going = self.ways if end is self.client else self.ways[::-1]
        wanted = selectors.EVENT_READ if not coming.ended and coming.size < MOST_WAITING else 0
        return wanted | (selectors.EVENT_WRITE if going.stuck else 0)

    def way_from(self, end: socket.socket) -> Way:
        """Return the direction of what this socket sends."""
        return self.to_server if end is self.client else self.to_client

    def close(self, reset: bool) -> None:
        """Close both sockets: in order, or so that the other end sees a reset."""
        self.closed = True
        for end in (self.client, self.server):
            if reset:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.close()
