"""Handlers and subscribers of one test: registered for it alone, run in threads, and ended with it."""

import threading
from collections.abc import Callable
from typing import Any

from sqlqueue import consumer
from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Consumer, registry
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.database.log import Log
from sqlqueue.models import DeliveryState, Offset

# What makes a test quick, and changes no promise.
QUICK = {
    "PARTITIONS": 4,
    "BALANCE_INTERVAL": 0.1,
    "IDLE_POLL_INTERVAL": 0.05,
    "FLUSH_INTERVAL": 0.1,
    "SHUTDOWN_TIMEOUT": 30.0,
    "LEASE_DURATION": 60,
    "WAKE": False,
}
END_TIMEOUT = 60.0


class Host:
    """A subscriber in a thread of its own. What ends it badly is raised by stop() and join()."""

    def __init__(self, subscriber: Subscriber, drain: bool = False) -> None:
        self.subscriber = subscriber
        self._drain = drain
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"host of {subscriber.name}", daemon=True)
        self._thread.start()
        assert self._started.wait(END_TIMEOUT), "the subscriber has not started"

    @property
    def name(self) -> str:
        return self.subscriber.name

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout: float | None = None) -> None:
        """Ask for a graceful end, and wait for it."""
        self.subscriber.stop(timeout)
        self.join()

    def join(self, timeout: float = END_TIMEOUT) -> None:
        """Wait for the end; raise AssertionError if it does not come, and what the subscriber raised."""
        self._thread.join(timeout)
        assert not self.running, f"{self.name} still runs after {timeout:g} s: {self.subscriber._shown()}"
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            self.subscriber.run(drain=self._drain, started=self._started.set)
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()


class Consuming:
    """Registers handlers and hosts them. The fixture `consuming` is one."""

    def __init__(self) -> None:
        registry.discover()  # once, so that what the apps register stays out of the test
        self._present = registry.consumers, registry.duplicates, registry.schedules
        registry.consumers, registry.duplicates, registry.schedules = {}, [], {}
        self._hosts: list[Host] = []
        self._gates: list[threading.Event] = []

    def consumer(self, topic: str, handler: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Register a handler, as the decorator does; or with a function, call the decorator on that."""
        decorate = consumer(topic, **options)
        return decorate if handler is None else decorate(handler)

    def gate(self) -> threading.Event:
        """Return an event for handlers to wait on; it is set when the test ends, whatever happens."""
        event = threading.Event()
        self._gates.append(event)
        return event

    def subscriber(self, *groups: str, threads: int = 4, **options: Any) -> Subscriber:
        """Return a subscriber of the registered handlers, of all groups or these, which is not running yet."""
        return Subscriber(self.registered(*groups), threads=threads, **options)

    def registered(self, *groups: str) -> list[Consumer]:
        return registry.select(groups)

    def start(self, *groups: str, threads: int = 4, drain: bool = False) -> Host:
        """Host the registered handlers until the host is stopped, or the test ends."""
        host = Host(self.subscriber(*groups, threads=threads), drain)
        self._hosts.append(host)
        return host

    def drain(self, *groups: str, threads: int = 4, timeout: float = END_TIMEOUT) -> Subscriber:
        """Host the registered handlers until everything that is due has been settled."""
        host = self.start(*groups, threads=threads, drain=True)
        host.join(timeout)
        return host.subscriber

    def forget(self) -> None:
        """Forget the registered handlers, so that others can take their place; subscribers keep theirs."""
        registry.consumers = {}

    def end_hosts(self) -> None:
        """Open every gate, and end every subscriber."""
        for gate in self._gates:
            gate.set()
        for host in self._hosts:
            host.subscriber.stop()
        for host in self._hosts:
            host.join()

    def end(self) -> None:
        """Open every gate, end every subscriber, and give the apps their registry back."""
        try:
            self.end_hosts()
        finally:
            registry.consumers, registry.duplicates, registry.schedules = self._present


def offset_row(topic: str, group: str = "default", partition: int = 0) -> Offset:
    """Return where a group stands in a partition."""
    return Offset.objects.get(topic=topic, consumer_group=group, partition=partition, priority=0)


def watermark(topic: str, group: str = "default", partition: int = 0) -> int:
    return offset_row(topic, group, partition).offset_acked


def states(topic: str, group: str = "default") -> list[tuple[int, int, bool]]:
    """Return (offset, attempts, acked) of every delivery state of a group."""
    rows = DeliveryState.objects.filter(topic=topic, consumer_group=group).order_by("message_offset")
    return list(rows.values_list("message_offset", "retry_count", "acked"))


def seconds_until_due(offset: int, group: str = "default") -> float:
    """Return how long a message is still invisible to a group, by the database's clock; negative if it is due."""
    remaining = Log.of(settings.DATABASE).dialect.remaining("invisible_until")
    text = f"SELECT {remaining} FROM sqlqueue_delivery_state WHERE message_offset = %s AND consumer_group = %s"
    return float(Log.of(settings.DATABASE).execute(text, (offset, group)).fetchone()[0])
