"""A proxy that leads a client to another server without a word: as proxies do that share or replace sessions."""

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable

HOST = "127.0.0.1"
NOT_STARTUP = {80877103, 80877104}  # PostgreSQL's requests for encryption, which come before the startup message
AT_ONCE = 256 * 1024  # bytes
ANSWER_TIMEOUT = 30.0

Login = Callable[[socket.socket, bytes], None]


def read_exactly(source: socket.socket, count: int) -> bytes:
    """Read so many bytes."""
    found = b""
    while len(found) < count:
        piece = source.recv(count - len(found))
        if not piece:
            raise ConnectionError("the other side has gone")
        found += piece
    return found


def mysql_packet(source: socket.socket) -> bytes:
    """Read a packet of MySQL's protocol."""
    head = read_exactly(source, 4)
    return head + read_exactly(source, int.from_bytes(head[:3], "little"))


class Session(threading.Thread):
    """One client. Its login is remembered, and repeated at the server to which it is led: it has no password."""

    def __init__(self, client: socket.socket, port: int, vendor: str) -> None:
        super().__init__(daemon=True)
        self.client, self.vendor = client, vendor
        self.server = socket.create_connection((HOST, port))
        self._bell, self._ringer = socket.socketpair()
        self._to: int | None = None
        self.led = threading.Event()
        self.login = b""

    def lead(self, port: int) -> None:
        """Lead the client to another server; it may not be within a request."""
        self._to = port
        self.led.clear()
        self._ringer.send(b".")

    def run(self) -> None:
        """Carry until either side ends."""
        try:
            self._log_in()
            self._carry()
        except OSError:
            pass
        finally:
            self.led.set()
            for one in (self.client, self.server, self._bell):
                one.close()

    def _log_in(self) -> None:
        if self.vendor == "mysql":
            self.client.sendall(mysql_packet(self.server))
            self.login = mysql_packet(self.client)
        else:
            while True:
                head = read_exactly(self.client, 8)
                length, code = struct.unpack("!II", head)
                if code not in NOT_STARTUP:
                    break
                self.client.sendall(b"N")
            self.login = head + read_exactly(self.client, length - 8)
        self.server.sendall(self.login)

    def _carry(self) -> None:
        with selectors.DefaultSelector() as selector:
            for one in (self.client, self.server, self._bell):
                selector.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._bell:
                        self._bell.recv(1)
                        selector.unregister(self.server)
                        self._lead()
                        selector.register(self.server, selectors.EVENT_READ)
                        break
                    piece = key.fileobj.recv(AT_ONCE)  # type: ignore[union-attr]
                    if not piece:
                        return
                    (self.server if key.fileobj is self.client else self.client).sendall(piece)

    def _lead(self) -> None:
        assert self._to is not None
        self.server.close()
        self.server = socket.create_connection((HOST, self._to))
        if self.vendor == "mysql":
            mysql_packet(self.server)
            self.server.sendall(self.login)
            assert mysql_packet(self.server)[4] == 0, "the server does not accept the login"
        else:
            self.server.sendall(self.login)
            kind = b""
            while kind != b"Z":  # ready for a query
                head = read_exactly(self.server, 5)
                kind = head[:1]
                assert kind != b"E", "the server does not accept the login"
                read_exactly(self.server, int.from_bytes(head[1:], "big") - 4)
        self.led.set()


class ReroutingProxy:
    """Carries clients from 127.0.0.1:`port` to a server on this host. vendor: whose protocol, as Django names it."""

    def __init__(self, target_port: int, vendor: str) -> None:
        self._target, self._vendor = target_port, vendor
        self._sessions: list[Session] = []
        self._listener = socket.create_server((HOST, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> "ReroutingProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for session in self._sessions:
            with contextlib.suppress(OSError):  # it has ended
                session.client.shutdown(socket.SHUT_RDWR)
            session.join()

    def lead_to(self, port: int) -> int:
        """Lead all clients to another server, the present ones too, of which none may be within a request; return how
        many these are."""
        self._target = port
        present = [session for session in self._sessions if session.is_alive()]
        for session in present:
            session.lead(port)
        for session in present:
            assert session.led.wait(ANSWER_TIMEOUT)
        return len(present)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            session = Session(client, self._target, self._vendor)
            self._sessions.append(session)
            session.start()
