"""Consumer processes of the tests' project, and what they leave in the tables and in their notes."""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sqlqueue import publish
from sqlqueue.models import DeliveryState, Message, Offset, PartitionLease, SubscriberHeartbeat
from tests.app.crash_handlers import HANDLED
from tests.app.models import Effect
from tests.processes import ManageCommand, ManageCommands, wait_until

GROUP = "default"
QUICK: dict[str, Any] = {
    "CONSUMERS_MODULE": "crash_handlers",
    "PARTITIONS": 4,
    "LEASE_DURATION": 60,
    "HEARTBEAT_INTERVAL": 0.5,
    "BALANCE_INTERVAL": 0.1,
    "IDLE_POLL_INTERVAL": 0.05,
    "FLUSH_INTERVAL": 0.1,
    "SHUTDOWN_TIMEOUT": 60,
}
LAST_STATEMENT = 0.7  # seconds that a server may take to end a statement, its commit to a slow disk included


class Consumers:
    """Starts `runconsumers` for topics of tests.app.crash_handlers, and publishes to them; a fixture."""

    def __init__(self, manage: ManageCommands, folder: Path, options: dict[str, Any]) -> None:
        self._manage, self._options = manage, options
        self.notes = folder / "notes"
        self.notes.touch()

    def start(
        self,
        *topics: str,
        processes: int = 1,
        threads: int = 4,
        drain: bool = False,
        ahead: int | None = None,
        metrics_port: int | None = None,
        url: str = "",
    ) -> ManageCommand:
        """Start them; processes=0: without a supervisor; ahead: they take themselves for busy ones, whose
        claims may be so many offsets ahead."""
        words = [f"--topic={topic}" for topic in topics] + [f"--processes={processes}", f"--threads={threads}"]
        words += ["--drain"] if drain else []
        words += [] if metrics_port is None else [f"--metrics-port={metrics_port}"]
        env = {"SQLQUEUE": json.dumps(self._options)}
        env |= {} if ahead is None else {"STEADY": str(ahead)}
        env |= {"DATABASE_URL": url} if url else {}
        return self._manage("runconsumers", *words, env=env)

    def publish(self, topic: str, name: str, **todo: Any) -> int:
        """Publish a message whose id and key is `name`; return its offset."""
        offset = publish(topic, {"notes": str(self.notes), **todo}, key=name, id=name).offset
        assert offset
        return offset

    def noted(self, what: str) -> Counter[tuple[str, int]]:
        """Count the notes: how often did a handler `begin` (or `end`) with this (id, attempt)?"""
        lines = [line.split() for line in self.notes.read_text().splitlines()]
        return Counter((name, int(attempt)) for kind, name, attempt in lines if kind == what)


def effects() -> Counter[tuple[str, int]]:
    """Count what handlers have committed: (id, attempt)."""
    values = Effect.objects.filter(name=HANDLED).values_list("value", flat=True)
    return Counter((name, int(attempt)) for name, attempt in (value.split() for value in values))


def heartbeats() -> dict[str, int]:
    """Return the live subscribers and their process ids."""
    return dict(SubscriberHeartbeat.objects.alive().values_list("subscriber", "pid"))


def holders(topic: str) -> Counter[str]:
    """Count the leases of each holder; "" holds the free ones."""
    return Counter(PartitionLease.objects.filter(topic=topic).values_list("holder", flat=True))


def wait_for_shares(topic: str, subscribers: int) -> dict[str, int]:
    """Return the subscribers and their process ids when so many of them hold all partitions, each some."""

    def shared() -> bool:
        found = holders(topic)
        return len(found) == subscribers and set(found) == set(heartbeats())

    wait_until(shared, message=lambda: f"{holders(topic)} of {heartbeats()}")
    return heartbeats()


def in_flight(topic: str, subscriber: str) -> set[str]:
    """Return the ids of the messages that are in flight with a subscriber, as the tables say."""
    found: set[int] = set()
    leases = PartitionLease.objects.filter(topic=topic, holder=subscriber)
    for lease in leases:
        states = DeliveryState.objects.filter(topic=topic, consumer_group=GROUP, partition=lease.partition)
        settled = set(states.filter(acked=True).values_list("message_offset", flat=True))
        found |= set(states.filter(acked=False).exclude(in_flight=0).values_list("message_offset", flat=True))
        offset = Offset.objects.get(topic=topic, consumer_group=GROUP, partition=lease.partition)
        claimed = Message.objects.filter(
            topic=topic, partition=lease.partition, offset__gt=offset.position, offset__lte=offset.claimed_to
        )
        found |= set(claimed.values_list("offset", flat=True)) - settled
    return set(Message.objects.filter(offset__in=found).values_list("message_id", flat=True))


def in_flight_at_last(topic: str, subscriber: str) -> set[str]:
    """The same for a subscriber that has been stopped: when the server has ended its last statement."""

    found, since = in_flight(topic, subscriber), time.monotonic()

    def the_same_for_a_while() -> bool:
        nonlocal found, since
        before, found = found, in_flight(topic, subscriber)
        if found != before:
            since = time.monotonic()
        return time.monotonic() > since + LAST_STATEMENT

    wait_until(the_same_for_a_while)
    return found


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and is not reaped yet does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return not status.parent.parent.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
