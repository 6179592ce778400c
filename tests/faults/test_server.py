"""The database server restarts and crashes under load: consumers recover by themselves, and nothing is lost."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import Error, connection, connections, transaction

from sqlqueue.models import Message
from tests.consumer_processes import GROUP, Consumers, effects, heartbeats, wait_for_shares
from tests.processes import wait_until
from tests.progress import dead_letter_offsets, wait_until_settled
from tests.servers.postgresql import PrivatePostgreSQL
from tests.servers.private import PrivateServer
from tests.servers.session import crash_a_process, late_commits

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql", "postgresql")]

TOPICS = ("steady", "atomic", "batches", "grouped")


class PersistentPublishers:
    """Threads for each topic, which publish each message until the database has said yes, and then the next one.

    Each pauses for so many seconds between two. published: the names of all of which it has, by topic; met: the
    publishers that have seen an error.
    """

    def __init__(
        self, consumers: Consumers, topics: Sequence[str] = TOPICS, each: int = 1, pause: float = 0.005
    ) -> None:
        self._consumers, self._pause = consumers, pause
        self._stopping = threading.Event()
        self._publishers = [(topic, number) for topic in topics for number in range(each)]
        self._pool = ThreadPoolExecutor(len(self._publishers))
        self.errors = 0
        self.met: set[tuple[str, int]] = set()
        self.published: dict[str, list[str]] = {topic: [] for topic in topics}

    def __enter__(self) -> "PersistentPublishers":
        self._done: list[Future[None]] = [self._pool.submit(self._run, *publisher) for publisher in self._publishers]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for done in self._done:
            done.result(120)
        self._pool.shutdown()

    def _run(self, topic: str, publisher: int) -> None:
        try:
            for number in itertools.count():
                if self._stopping.is_set():
                    return
                name = f"{topic}-{publisher}-{number}"
                while not self._publish(topic, name):
                    self.met.add((topic, publisher))
                    time.sleep(0.05)
                self.published[topic].append(name)
                time.sleep(self._pause)
        finally:
            connections.close_all()

    def _publish(self, topic: str, name: str) -> bool:
        try:
            with transaction.atomic():
                self._consumers.publish(topic, name)
        except Error:
            self.errors += 1
            connection.close()
            return False
        return True


def run_through(consumers: Consumers, faults: list[Callable[[], None]]) -> None:
    """Let faults happen one after another while messages are published and consumed.

    Asserts that every message that was published is handled, each atomic effect once, by the consumers that were there.
    """
    command = consumers.start(*TOPICS, processes=2)
    for topic in TOPICS:
        wait_for_shares(topic, 2)
    with PersistentPublishers(consumers) as publishers:
        for fault in faults:
            wait_until_worked(consumers)
            fault()
            connection.close()
        wait_until_worked(consumers)
    assert publishers.errors >= len(faults), "the server was not missed"
    for topic in TOPICS:
        wait_until_settled(topic, GROUP)
        for number in range(12):
            name = f"{topic}-last-{number}"
            consumers.publish(topic, name)
            publishers.published[topic].append(name)
        wait_until_settled(topic, GROUP)
    command.terminate()
    assert command.wait() == 0, command.output

    assert "event=process_died" not in command.output, f"a consumer did not recover by itself\n{command.output}"
    lost = [line for line in command.output.splitlines() if "event=lease_lost" in line]
    assert lost
    assert all("the database server was started again" in line for line in lost), "the process is blamed"
    handled = effects()
    names = [name for name, _ in handled.elements()]
    for topic in TOPICS:
        assert {name for name in names if name.startswith(topic)} == set(publishers.published[topic])
        assert not dead_letter_offsets(topic, GROUP)
    atomic = [name for name in names if not name.startswith("steady")]
    assert len(atomic) == len(set(atomic)), "an atomic effect was committed twice"
    assert set(handled.values()) == {1}, "a message had the same attempt twice"


def test_restarts_and_crashes_of_the_server_lose_nothing_and_repeat_no_atomic_effect(
    consumers: Consumers, database_server: PrivateServer
) -> None:
    def crash() -> None:
        database_server.kill()
        database_server.start()

    run_through(consumers, [database_server.restart, crash, crash])


@pytest.mark.session
def test_a_hundred_publishers_publish_each_message_once_through_restarts_of_the_server(
    consumers: Consumers, database_server: PrivateServer
) -> None:
    """Each tries again until it hears a yes: a commit whose answer was lost has published, and its id keeps it one."""

    def crash() -> None:
        database_server.kill()
        database_server.start()

    consumers.start("steady", processes=1)
    wait_for_shares("steady", 1)
    with PersistentPublishers(consumers, ("steady",), each=100, pause=0.8) as publishers:
        names = publishers.published["steady"]
        for fault in (database_server.restart, crash):
            publishers.met.clear()
            before = len(names)
            wait_until(lambda before=before: len(names) >= before + 150, 180.0)
            fault()
            connection.close()
            wait_until(lambda: len(publishers.met) >= 90, 180.0, lambda: f"{len(publishers.met)} have missed it")
        before = len(names)
        wait_until(lambda: len(names) >= before + 150, 180.0)
    wait_until_settled("steady", GROUP)
    logged = Counter(Message.objects.filter(topic="steady").values_list("message_id", flat=True))
    assert logged == dict.fromkeys(names, 1)
    assert {name for name, _ in consumers.noted("end")} == set(names)
    assert not dead_letter_offsets("steady", GROUP)


@pytest.mark.database("postgresql")
def test_the_crash_of_one_of_the_servers_processes_loses_nothing_and_repeats_no_atomic_effect(
    consumers: Consumers, database_server: PrivatePostgreSQL
) -> None:
    """The server then ends all connections, recovers from its log and goes on; it has not been restarted."""
    before = database_server.pid
    run_through(consumers, [crash_a_process, crash_a_process])
    assert database_server.pid == before


def test_an_outage_longer_than_the_leases_loses_nothing_and_repeats_no_atomic_effect(
    consumers: Consumers, consumer_options: dict[str, Any], database_server: PrivateServer
) -> None:
    consumer_options.update(LEASE_DURATION=1, HEARTBEAT_INTERVAL=0.4)

    def stay_away() -> None:
        database_server.kill()
        killed = time.monotonic()
        wait_until(lambda: time.monotonic() > killed + 2 * consumer_options["LEASE_DURATION"])
        database_server.start()

    run_through(consumers, [stay_away])


@pytest.mark.session
def test_messages_on_the_offsets_of_forgotten_ones_are_delivered(
    consumers: Consumers, database_server: PrivateServer
) -> None:
    """A server that forgets its last commits assigns their offsets again, below what a consumer has read.

    Even a durable server shows a commit a moment before it is safe; here it is told to be a second late, to hit that.
    """
    consumers.start("steady", processes=2)
    wait_for_shares("steady", 2)
    forgotten = 0
    for attempt in range(5):
        with late_commits():
            shown = max(consumers.publish("steady", f"steady-shown-{attempt}-{number}") for number in range(40))
            database_server.kill()
            connection.close()
            database_server.start()
        wait_until(lambda: heartbeats(), message="no consumer has come back")
        names = {f"steady-kept-{attempt}-{number}" for number in range(60)}
        first = min(consumers.publish("steady", name) for name in sorted(names))
        forgotten += first <= shown
        wait_until_settled("steady", GROUP)
        assert names <= {name for name, _ in consumers.noted("end")}
    assert forgotten, "the server has never forgotten anything"


def wait_until_worked(consumers: Consumers) -> None:
    """Return when each topic's handlers have handled some more."""
    before = {topic: handled(consumers, topic) for topic in TOPICS}
    wait_until(lambda: all(handled(consumers, topic) >= before[topic] + 40 for topic in TOPICS))


def handled(consumers: Consumers, topic: str) -> int:
    """Count a topic's finished handlers."""
    return sum(name.startswith(topic) for name, _ in consumers.noted("end"))
