"""The small HTTP server of probes and scrapes: a client can hold it up for so long, and no longer."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from sqlqueue.monitoring import http_server
from sqlqueue.monitoring.http_server import HttpServer, Response
from tests.processes import wait_until

SLOWEST = 1.0
REQUEST = b"GET /x HTTP/1.0\r\nX-Slow: "


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(http_server, "SLOWEST", SLOWEST)
    opened = HttpServer("health", "127.0.0.1", 0, lambda path, header: Response(200, "text/plain", path.encode()))
    yield opened.port
    opened.close()


@pytest.fixture
def client(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 30) as made:
        yield made


def answer(client: socket.socket) -> bytes:
    """Return everything until the server closes."""
    read = b""
    try:
        while some := client.recv(4096):
            read += some
    except ConnectionResetError:
        pass
    return read


def test_a_request_in_pieces_is_answered(client: socket.socket) -> None:
    for piece in (REQUEST, b"a", b"\r\n", b"\r\n"):
        client.sendall(piece)
    assert answer(client).endswith(b"/x")


@pytest.mark.of_time
def test_a_client_that_trickles_is_left_when_its_whole_request_takes_too_long(client: socket.socket) -> None:
    began = time.monotonic()
    client.sendall(REQUEST)
    client.settimeout(SLOWEST / 10)
    try:
        while time.monotonic() - began < 10 * SLOWEST:  # each byte comes well within the time
            client.sendall(b"a")
            try:
                assert client.recv(1) == b""
                break
            except TimeoutError:
                continue
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert SLOWEST * 0.9 < time.monotonic() - began < 5 * SLOWEST


@pytest.mark.of_time
def test_a_silent_client_is_left(client: socket.socket) -> None:
    began = time.monotonic()
    assert answer(client) == b""
    assert time.monotonic() - began < 5 * SLOWEST


def test_others_are_answered_meanwhile(client: socket.socket, port: int) -> None:
    client.sendall(REQUEST)
    with socket.create_connection(("127.0.0.1", port), 30) as other:
        other.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        assert answer(other).startswith(b"HTTP/1.0 200 OK")


def test_what_is_no_request_is_refused(client: socket.socket) -> None:
    client.sendall(b"POST / HTTP/1.0\r\n\r\n")
    assert answer(client).startswith(b"HTTP/1.0 501")


def answering() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_clients_beyond_the_bound_are_refused_and_have_no_thread(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until(lambda: not answering())
    monkeypatch.setattr(http_server, "SLOWEST", 10.0)
    clients: list[socket.socket] = []
    try:
        for _ in range(http_server.MOST_CLIENTS):
            clients.append(socket.create_connection(("127.0.0.1", port), 30))
            clients[-1].sendall(REQUEST)
        wait_until(lambda: answering() == http_server.MOST_CLIENTS)
        for request in (b"GET / HTTP/1.0\r\n\r\n", b"GE"):
            with socket.create_connection(("127.0.0.1", port), 30) as other:
                other.sendall(request)
                assert answer(other).startswith(b"HTTP/1.0 503")
        assert answering() == http_server.MOST_CLIENTS
        assert [answer(client) for client in clients] == [b""] * len(clients)  # they were too slow
    finally:
        for client in clients:
            client.close()

    def answered() -> bool:
        with socket.create_connection(("127.0.0.1", port), 30) as other:
            other.sendall(b"GET /x HTTP/1.0\r\n\r\n")
            return answer(other).endswith(b"/x")

    wait_until(answered)
