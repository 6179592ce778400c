"""The proxy of the fault harness carries everything unchanged, and does exactly the harm that it is told to do."""

import hashlib
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from django.db import Error, connection, connections, transaction

from sqlqueue import publish
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.database.retries import ErrorKind, classify
from tests.app.models import Effect
from tests.processes import wait_until
from tests.progress import wait_until_settled
from tests.servers.private import COMMIT_REQUEST, PrivateServer
from tests.soak.proxy import Proxy
from tests.subscribers import RunningSubscriber, consumer

MOMENT = 0.3  # seconds in which something that must not happen would have happened


class Echo:
    """A server that sends back what it gets, and keeps it: the requests of each connection, and how it ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port: int = self._listener.getsockname()[1]
        self.requests: list[bytes] = []
        self.ends: list[str] = []
        threading.Thread(target=self._accept, name="echo", daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(1 << 16):
                    self.requests.append(data)
                    client.sendall(data)
                self.ends.append("in order")
            except ConnectionError:
                self.ends.append("reset")


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as carrying:
        yield carrying


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Callable[[], socket.socket]]:
    """Connect through the proxy; all connections are closed after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=30))


def answer(client: socket.socket, size: int) -> bytes:
    """Return so many bytes, or less at the end."""
    found = bytearray()
    while len(found) < size and (data := client.recv(size - len(found))):
        found += data
    return bytes(found)


def ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return answer(client, len(request))


def assert_is_reset(client: socket.socket) -> None:
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def assert_is_silent(client: socket.socket) -> None:
    client.settimeout(MOMENT)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(30)


Connect = Callable[[], socket.socket]


class TestCarrying:
    def test_everything_arrives_unchanged_and_an_end_is_passed_on(
        self, proxy: Proxy, echo: Echo, connect: Connect
    ) -> None:
        """The client ends its direction first; what the server still has to say comes all the same."""
        client = connect()
        sent = random.Random(1).randbytes(5_000_000)

        def send() -> None:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send)
            assert answer(client, len(sent) + 1) == sent
            sending.result()
        wait_until(lambda: echo.ends == ["in order"])
        assert (proxy.connections, proxy.cuts, proxy.lost, proxy.carried) == (1, 0, 0, 2 * len(sent))

    def test_sixty_connections_side_by_side(self, proxy: Proxy, connect: Connect) -> None:
        def work(number: int) -> bool:
            client, dice = connect(), random.Random(number)
            for size in [1, 100, 100_000, 3] * 10:
                request = dice.randbytes(size)
                if hashlib.sha256(ask(client, request)).digest() != hashlib.sha256(request).digest():
                    return False
            return True

        with ThreadPoolExecutor(60) as pool:
            assert all(pool.map(work, range(60)))
        assert proxy.connections == 60

    def test_a_client_that_does_not_read_delays_no_other(self, proxy: Proxy, connect: Connect) -> None:
        greedy, other = connect(), connect()
        sent = 0
        greedy.settimeout(MOMENT)
        with suppress(TimeoutError):
            while sent < 100_000_000:
                sent += greedy.send(bytes(1 << 20))
        assert sent < 100_000_000, "it keeps whatever is sent"
        assert ask(other, b"hello") == b"hello"
        greedy.settimeout(30)
        assert answer(greedy, sent) == bytes(sent)

    def test_what_the_server_does_to_a_connection_is_done_to_the_client(self, echo: Echo) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()[1]) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
                there, _ = server.accept()
                there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                there.close()
                assert_is_reset(client)
            server.close()
            with pytest.raises(ConnectionResetError):  # by the connect, or by what follows it
                socket.create_connection(("127.0.0.1", proxy.port), timeout=30).recv(1)
            assert (proxy.connections, proxy.cuts) == (2, 0)

    def test_closing_resets_all_and_gives_the_port_back(self, proxy: Proxy, echo: Echo, connect: Connect) -> None:
        client = connect()
        ask(client, b"hello")
        proxy.close()
        proxy.close()
        assert_is_reset(client)
        wait_until(lambda: echo.ends == ["reset"])
        with pytest.raises(ConnectionRefusedError):
            connect()


class TestFaults:
    def test_cut_resets_all_present_connections_at_both_ends(self, proxy: Proxy, echo: Echo, connect: Connect) -> None:
        clients = [connect() for _ in range(5)]
        for client in clients:
            ask(client, b"hello")
        assert proxy.cut() == 5
        for client in clients:
            assert_is_reset(client)
        wait_until(lambda: echo.ends == ["reset"] * 5)
        assert ask(connect(), b"again") == b"again"
        assert (proxy.connections, proxy.cuts) == (6, 5)

    def test_refuse_refuses_new_connections_only(self, proxy: Proxy, connect: Connect) -> None:
        client = connect()
        ask(client, b"hello")
        port = proxy.port
        proxy.refuse()
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                connect()
        assert ask(client, b"still here") == b"still here"
        proxy.restore()
        assert ask(connect(), b"again") == b"again"
        assert proxy.port == port

    def test_a_refusal_may_end_by_itself(self, proxy: Proxy, connect: Connect) -> None:
        proxy.refuse(MOMENT)

        def accepted() -> bool:
            try:
                return ask(connect(), b"again") == b"again"
            except ConnectionRefusedError:
                return False

        assert not accepted()
        wait_until(accepted)

    def test_a_black_hole_accepts_and_carries_nothing_and_closes_nothing(
        self, proxy: Proxy, echo: Echo, connect: Connect
    ) -> None:
        client = connect()
        ask(client, b"hello")
        proxy.blackhole()
        client.sendall(b"into the dark")
        later = connect()
        later.sendall(b"more")
        later.shutdown(socket.SHUT_WR)
        for each in (client, later):
            assert_is_silent(each)
        assert echo.requests == [b"hello"]
        assert echo.ends == []
        proxy.restore()
        assert answer(client, 13) == b"into the dark"
        assert answer(later, 5) == b"more"
        assert proxy.cuts == 0

    def test_a_black_hole_may_end_by_itself(self, proxy: Proxy, connect: Connect) -> None:
        client = connect()
        ask(client, b"hello")
        began = time.monotonic()
        proxy.blackhole(MOMENT)
        assert ask(client, b"later") == b"later"
        assert time.monotonic() - began >= MOMENT

    def test_connections_in_a_black_hole_can_be_cut(self, proxy: Proxy, connect: Connect) -> None:
        client = connect()
        ask(client, b"hello")
        proxy.blackhole()
        assert proxy.cut() == 1
        assert_is_reset(client)

    def test_delay_is_added_to_each_direction_and_changes_nothing_else(self, proxy: Proxy, connect: Connect) -> None:
        client = connect()
        proxy.delay(0.1)
        began = time.monotonic()
        assert ask(client, b"hello") == b"hello"
        assert time.monotonic() - began >= 0.2
        sent = random.Random(2).randbytes(3_000_000)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(client.sendall, sent)
            assert answer(client, len(sent)) == sent
            sending.result()
        client.sendall(b"before")
        proxy.delay(0)
        client.sendall(b"behind")
        assert answer(client, 12) == b"beforebehind", "what was sent later has overtaken"

    def test_lost_replies_are_of_requests_that_were_carried(self, proxy: Proxy, echo: Echo, connect: Connect) -> None:
        client = connect()
        ask(client, b"hello")
        proxy.lose_replies()
        client.sendall(b"do it")
        assert_is_reset(client)
        assert echo.requests == [b"hello", b"do it"]
        assert (proxy.lost, proxy.cuts, proxy.carried) == (1, 1, 15)
        proxy.restore()
        assert ask(connect(), b"again") == b"again"

    def test_replies_to_certain_requests_alone_can_be_lost(self, proxy: Proxy, echo: Echo, connect: Connect) -> None:
        clients = [connect(), connect()]
        proxy.lose_replies(to=b"COMMIT")
        clients.append(connect())
        for client in clients:
            assert ask(client, b"INSERT") == b"INSERT"
        for client in clients[1:]:
            client.sendall(b"..COMMIT..")
            assert_is_reset(client)
        assert ask(clients[0], b"ROLLBACK") == b"ROLLBACK"
        assert echo.requests.count(b"..COMMIT..") == proxy.lost == 2
        proxy.restore()
        assert ask(clients[0], b"COMMIT") == b"COMMIT"

    def test_faults_from_many_threads_leave_a_proxy_that_works(self, proxy: Proxy, connect: Connect) -> None:
        stop = threading.Event()

        def talk(number: int) -> int:
            answered = 0
            while not stop.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
                        while not stop.is_set():
                            request = b"%d %d" % (number, answered)
                            got = ask(client, request)
                            assert request.startswith(got)  # an end may come too early, nothing else may come
                            answered += got == request
                except ConnectionError:
                    time.sleep(0.001)
            return answered

        def harm(number: int) -> None:
            dice = random.Random(number)
            for _ in range(60):
                dice.choice(
                    [
                        proxy.cut,
                        proxy.restore,
                        proxy.lose_replies,
                        lambda: proxy.refuse(0.01),
                        lambda: proxy.blackhole(0.01),
                        lambda: proxy.delay(dice.random() / 100),
                    ]
                )()

        with ThreadPoolExecutor(14) as pool:
            talking = [pool.submit(talk, number) for number in range(10)]
            harming = [pool.submit(harm, number) for number in range(4)]
            try:
                for done in harming:
                    done.result()
                proxy.restore()
                before = proxy.carried
                wait_until(lambda: proxy.carried > before + 10_000)
            finally:
                stop.set()
            assert all(done.result() for done in talking), "a client was never answered"
        assert proxy.cuts >= proxy.lost
        assert ask(connect(), b"again") == b"again"


@pytest.fixture
def through_proxy(database_server: PrivateServer) -> Iterator[Proxy]:
    """Let every connection that is opened from now on go through a proxy."""
    connections.close_all()
    settings = connections.settings["default"]
    before = settings["PORT"]
    with Proxy(database_server.port) as proxy:
        settings["PORT"] = proxy.port
        yield proxy
        connections.close_all()
        settings["PORT"] = before


class TestOnTheDatabase:
    def test_a_commit_whose_reply_is_lost_has_come_through(self, through_proxy: Proxy) -> None:
        connection.ensure_connection()
        through_proxy.lose_replies(to=COMMIT_REQUEST)
        with pytest.raises(Error) as said, transaction.atomic():
            Effect.objects.create(name="in doubt", value="1")
        assert classify(said.value) is ErrorKind.GONE
        assert through_proxy.lost == 1
        through_proxy.restore()
        connection.close()
        assert [effect.name for effect in Effect.objects.all()] == ["in doubt"]

    def test_an_atomic_handler_whose_commits_get_no_reply_has_its_effects_once(
        self, through_proxy: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        def handle(delivery: Delivery) -> None:
            Effect.objects.create(name="handled", value=delivery.id)
            if delivery.attempt == 1:
                through_proxy.lose_replies(to=COMMIT_REQUEST)

        names: list[str] = []

        def doubts() -> int:
            """Publish one more; return how many handlers have not known whether their commit had come through."""
            names.append(f"message-{len(names)}")
            before = through_proxy.lost
            publish("doubtful", {}, id=names[-1])
            wait_until(lambda: through_proxy.lost > before)
            through_proxy.restore()
            wait_until_settled("doubtful", "default")
            return sum("event=commit_outcome_unknown" in record.getMessage() for record in caplog.records)

        with caplog.at_level(logging.WARNING, "sqlqueue"), RunningSubscriber(consumer("doubtful", handle, atomic=True)):
            wait_until(lambda: doubts() >= 5)
        assert sorted(Effect.objects.values_list("value", flat=True)) == sorted(names)
