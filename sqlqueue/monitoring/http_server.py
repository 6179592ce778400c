"""A small HTTP server in a thread of its own, for probes and scrapes."""

from __future__ import annotations

import errno
import io
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from sqlqueue.core.logfmt import logfmt
from sqlqueue.exceptions import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

logger = logging.getLogger("sqlqueue")

MOST_CLIENTS = 8  # that are answered at once, each in a thread
SLOWEST = 10.0  # seconds that a client may take to send its whole request, and again to receive the response


FULL = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Response(NamedTuple):
    """Status, content type and body that a client gets."""

    status: int
    content_type: str
    body: bytes


Respond = Callable[[str, str], Response | None]


class HttpServer:
    """Answers GET and HEAD on one port until it is closed. It calls `respond` with the path and the Authorization
    header, in a thread for each client, of up to MOST_CLIENTS; the others get 503. None means 404;
    other methods get 501."""

    def __init__(self, purpose: str, address: str, port: int, respond: Respond):
        self._server = _Server(purpose, address, port, respond)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name=f"sqlqueue-{purpose}", daemon=True)
        self._thread.start()
        logger.info(logfmt("listening", purpose=purpose, address=address, port=self.port))

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(SLOWEST)


def refusal(purpose: str, address: str, port: int) -> str:
    """Return why the port cannot be opened, "" if it can."""
    try:
        _Server(purpose, address, port, lambda path, authorization: None).server_close()
    except ConfigurationError as error:
        return str(error)
    return ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, purpose: str, address: str, port: int, respond: Respond):
        self.respond = respond
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._room = threading.BoundedSemaphore(MOST_CLIENTS)
        try:
            super().__init__((address, port), _Handler)
        except (OSError, OverflowError, UnicodeError) as error:  # no such port; not a valid host name
            used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            reason = "it is in use; is another one running?" if used else str(error)
            raise ConfigurationError(f"the {purpose} port {port} on {address} cannot be opened: {reason}") from None

    def server_bind(self) -> None:
        """Bind, without asking for the name of the host, which may take long."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread of its own; refuse one too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self._refuse(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def _refuse(self, request: socket.socket) -> None:
        """Answer 503, without waiting for the client: this thread accepts all of them."""
        with suppress(OSError):
            request.setblocking(False)
            request.sendall(FULL)
            request.recv(65_536)  # what is left unread would reset the connection, and the answer with it
        self.shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log at DEBUG that a client has disconnected or did not speak HTTP."""
        logger.debug(logfmt("client_failed", client=client_address, error=sys.exc_info()[1]))


class _Request(io.RawIOBase):
    """Reads a client's request until a deadline. A socket's own timeout would begin anew with every byte."""

    def __init__(self, client: socket.socket, deadline: float):
        self._client, self._deadline = client, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the request did not end in time")
        self._client.settimeout(remaining)
        return self._client.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "sqlqueue"
    sys_version = ""

    def setup(self) -> None:
        """Set the deadline by which the whole request must have arrived."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection, time.monotonic() + SLOWEST))

    def parse_request(self) -> bool:
        """Read the request, then set the timeout of the response."""
        whole = super().parse_request()
        self.connection.settimeout(SLOWEST)
        return whole

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def _respond(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        try:
            response = self.server.respond(path, self.headers.get("Authorization", ""))
        except Exception as error:
            logger.error(logfmt("response_failed", path=path, error=error), exc_info=error)
            response = Response(500, "text/plain", b"")
        finally:
            connections.close_all()
        status, kind, body = response or Response(404, "text/plain", b"")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == 401:
            self.send_header("WWW-Authenticate", 'Bearer realm="sqlqueue"')
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing: probes come every few seconds, and a request may carry a token."""
