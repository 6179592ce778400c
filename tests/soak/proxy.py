"""A TCP proxy that does to a server's clients what networks do: resets, refusals, silence, delays, lost replies."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

HOST = "127.0.0.1"
BACKLOG = 512
ANSWER_TIMEOUT = 60.0
FOR_EVER = float("inf")
TOO_EARLY = 0.001  # seconds by which a loop may call before the time
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 seconds


class Proxy:
    """Carries connections from 127.0.0.1:`port` to 127.0.0.1:`target_port`, in a thread of its own, and does them harm.

    Every method may be called from any thread, and has taken effect when it returns. Faults add up; each lasts until
    restore(), or as long as it was told. To harm some clients only, give them a proxy of their own.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        # Bound and never listening: it keeps the port while connections to it are refused.
        self._reserved = socket_at(0)
        self.port: int = self._reserved.getsockname()[1]
        self.connections = 0  # that it has accepted
        self.cuts = 0  # of them, that its faults have reset
        self.lost = 0  # replies that it has swallowed
        self.carried = 0  # bytes that it has taken in and not swallowed, both directions together
        self.clients: set[End] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}  # when a fault ends by itself
        self._latency = 0.0
        self._losing: re.Pattern[bytes] | None = None
        self.held = False
        self._listener: socket.socket | None = None
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"proxy to {target_port}", daemon=True)
        self._listen()

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Carry from now on. Connections that came before have waited."""
        self._thread.start()

    def close(self) -> None:
        """Reset all connections, and give the port back. Closing twice is closing once."""
        if self._thread.is_alive():
            self._do(self._end())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        self._stop_listening()
        self._reserved.close()
        self.loop.close()

    def cut(self) -> int:
        """Reset all present connections, at both ends; new ones are accepted. Return how many there were."""
        return self._do(self._cut_all())

    def refuse(self, seconds: float = FOR_EVER) -> None:
        """Refuse new connections; present ones go on."""
        self._do(self._refuse(seconds))

    def blackhole(self, seconds: float = FOR_EVER) -> None:
        """Accept, carry nothing, not even an end, and close nothing. What is held up arrives afterwards."""
        self._do(self._hold(seconds))

    def delay(self, seconds: float) -> None:
        """Let everything arrive so much later, in each direction."""
        self._latency = seconds

    def lose_replies(self, to: bytes = b"") -> None:
        """Carry requests; instead of the answer to one in which `to` (a regex) is found, reset the connection."""
        self._losing = re.compile(to)

    def restore(self) -> None:
        """End all faults."""
        self._do(self._restore())

    def _do(self, order: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(order, self.loop).result(ANSWER_TIMEOUT)

    # -- what its thread does ------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket_at(self.port)
            self._listener.listen(BACKLOG)
            self.loop.add_reader(self._listener, self._accept, self._listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self.loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _end(self) -> None:
        self._stop_listening()
        for client in list(self.clients):
            client.drop()
        await asyncio.sleep(0)  # they are closed in the loop's next round

    async def _cut_all(self) -> int:
        clients = list(self.clients)
        for client in clients:
            self._cut(client)
        await asyncio.sleep(0)
        return len(clients)

    def _cut(self, client: End) -> None:
        self.cuts += 1
        client.drop()

    async def _refuse(self, seconds: float) -> None:
        self._stop_listening()
        self._end_after(seconds, "refuse", self._listen)

    async def _hold(self, seconds: float) -> None:
        self._set_held(True)
        self._end_after(seconds, "hold", lambda: self._set_held(False))

    def _end_after(self, seconds: float, fault: str, end: Callable[[], None]) -> None:
        if fault in self._timers:
            self._timers[fault].cancel()
        self._timers[fault] = self.loop.call_later(seconds, end)

    def _set_held(self, held: bool) -> None:
        self.held = held
        for client in list(self.clients):
            for end in (client, client.peer):
                if end is not None:
                    end.go_on()

    async def _restore(self) -> None:
        self._latency, self._losing = 0.0, None
        for timer in self._timers.values():
            timer.cancel()
        for client in self.clients:
            client.asked = False
        self._set_held(False)
        self._listen()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client has gone
        accepted.setblocking(False)
        self.connections += 1
        task = self.loop.create_task(self._connect(accepted))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        """Connect a new client with the server."""
        client = End(self)
        await self.loop.connect_accepted_socket(lambda: client, accepted)
        try:
            await self.loop.create_connection(lambda: End(self, client), HOST, self._target_port)
        except OSError:
            client.drop()
        else:
            if client not in self.clients:
                client.drop()  # it was cut meanwhile

    def received(self, end: End, piece: bytes) -> None:
        """Send on what one end has sent (nothing: its end), or swallow it as the faults want it."""
        client = end.client or end
        if piece and self._losing is not None:
            if end.client is not None and client.asked:
                self.lost += 1
                self._cut(client)
                return
            if end is client and self._losing.search(piece):
                client.asked = True
        self.carried += len(piece)
        end.send_on(piece, self._latency)


class End(asyncio.Protocol):
    """One end of a connection, a client's or (`client`: which) the server's, and what it has sent."""

    def __init__(self, proxy: Proxy, client: End | None = None) -> None:
        self.proxy, self.client, self.peer = proxy, client, client
        self.asked = False  # a request of this client has been carried whose answer is to be lost
        self.full = False  # it does not take what is sent to it
        self.ended = False  # it has said that no more comes
        self.over = False  # and its peer has been told, behind all the rest
        self.waiting: deque[tuple[float, bytes]] = deque()  # each piece, and when it is due
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.client is None:
            transport.pause_reading()  # type: ignore[attr-defined]
            self.proxy.clients.add(self)
        else:
            self.client.peer = self
            self.go_on()
            self.client.go_on()

    def data_received(self, data: bytes) -> None:
        self.proxy.received(self, data)

    def eof_received(self) -> bool:
        self.ended = True
        self.proxy.received(self, b"")
        return True  # the other direction goes on

    def pause_writing(self) -> None:
        self.full = True
        if self.peer is not None:
            self.peer.go_on()

    def resume_writing(self) -> None:
        self.full = False
        if self.peer is not None:
            self.peer.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop()  # what the one end does is done to the other

    def send_on(self, piece: bytes, latency: float) -> None:
        """Send a piece to the other end when it is due, behind those that wait."""
        loop = self.proxy.loop
        due = loop.time() + latency
        self.waiting.append((due, piece))
        if latency:
            loop.call_at(due, self._flush)
        else:
            self._flush()

    def go_on(self) -> None:
        """Read, and send what is due, unless the proxy carries nothing or the other end takes no more."""
        if not self.ended:
            if self.proxy.held or self.peer is None or self.peer.full:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        self._flush()

    def _flush(self) -> None:
        if self.proxy.held or self.peer is None:
            return
        now = self.proxy.loop.time() + TOO_EARLY
        while self.waiting and self.waiting[0][0] <= now:
            piece = self.waiting.popleft()[1]
            if piece:
                self.peer.transport.write(piece)
            else:
                self.over = True
                with suppress(OSError):  # the other side has gone already
                    self.peer.transport.write_eof()
        if self.over and self.peer.over:
            for end in (self, self.peer):
                end.transport.close()

    def drop(self) -> None:
        """Reset the connection at both ends, if it has not been closed."""
        self.proxy.clients.discard(self.client or self)
        for end in (self, self.peer):
            if end is not None and not end.transport.is_closing():
                end.reset()

    def reset(self) -> None:
        """Close this end so that the other side sees a reset."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()


def socket_at(port: int) -> socket.socket:
    """Return a socket that is bound to this port of the loopback (0: to a free one), maybe beside another of ours."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    bound.setblocking(False)
    return bound
