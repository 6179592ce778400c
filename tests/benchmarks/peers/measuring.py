"""One peer under measurement: a round of it takes all figures once."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.benchmarks.peers.handling import Note, count_notes, read_notes
from tests.benchmarks.peers.producer import Producer
from tests.benchmarks.peers.servers import Servers
from tests.benchmarks.peers.workers import Worker
from tests.processes import ROOT

STARTS = 60.0  # seconds that a worker's first message is waited for
ENDS = 60.0  # seconds that a backlog is waited for, without a message handled
SETTLES = 1.0  # seconds after the last message until a worker counts as idle
FEWEST = 100  # messages of a measurement
AMONG = 10  # the first tenth of a backlog is not measured: workers have taken it before their first note
WARM = 50  # messages
GAPS, SAMPLES = (0.04, 0.12), 34  # seconds between the messages that come to an idle worker, and how many a round has


class MeasurementError(Exception):
    """A peer has not done what is measured; the message says what, with its log's last lines."""


class Peer:
    """A peer with its database, its producer and the notes of its handlers."""

    def __init__(self, name: str, servers: Servers, most: int, seconds: float) -> None:
        self.name, self.most, self.seconds = name, most, seconds
        variables, self.count = servers.environment(name)
        self.notes, self.log = servers.folder / f"{name}.notes", servers.folder / f"{name}.log"
        self.environment = {
            **variables,
            "PEER": name,
            "DJANGO_SETTINGS_MODULE": "tests.benchmarks.peers.settings",
            "PEERS_NOTES": str(self.notes),
            "PYTHONPATH": str(ROOT),
        }
        self.producer = Producer(name, self.environment, self.log)
        try:
            self.facts = self.producer("describe")
            self.producer("prepare")
        except BaseException:
            self.producer.close()
            raise
        self.sent = 0
        self.random = random.Random(name)
        self.rates: dict[str, float] = {}

    def close(self) -> None:
        self.producer.close()

    def send(self, what: str, kind: str, **order: Any) -> dict[str, Any]:
        """Have the producer send messages with numbers of their own; return its answer, with the first number."""
        first = self.sent
        self.sent += order.get("count", 0) or len(order["gaps"])
        return {"first": first, **self.producer(what, kind=kind, first=first, **order)}

    def start(self, **variables: str) -> Worker:
        """Start its worker, with more variables."""
        return Worker(self.facts["workers"], {**self.environment, **variables}, self.log)

    @contextmanager
    def working(self) -> Iterator[Worker]:
        """Run the worker; it has handled a message of each kind when the block begins."""
        worker = self.start()
        try:
            before = count_notes(self.notes)
            for kind in self.facts["kinds"]:
                self.send("single", kind, count=1)
            self.wait_for(before + len(self.facts["kinds"]), worker, STARTS)
            yield worker
        finally:
            worker.go_on()
            worker.end()

    def wait_for(self, total: int, worker: Worker, patience: float = ENDS) -> None:
        """Wait until there are so many notes; `patience`: without a new one."""
        seen, since = -1, time.monotonic()
        while (found := count_notes(self.notes)) < total:
            if found > seen:
                seen, since = found, time.monotonic()
            if time.monotonic() > since + patience or not worker.runs:
                said = self.log.read_text(errors="replace")[-1500:]
                raise MeasurementError(f"{total - found} of {self.name}'s messages have not been handled.\n{said}")
            time.sleep(0.002)

    def calibrate(self, kinds: Sequence[str] = ()) -> None:
        """Learn how many messages a measurement takes, of these kinds or all, and warm everything up. Not measured."""
        with self.working() as worker:
            for kind in kinds or self.facts["kinds"]:
                count, rate_so_far = WARM, self.backlog(worker, kind, WARM)["rate"]
                while count < min(self.most, rate_so_far * self.seconds / 2):  # a few say little of what takes batches
                    count = min(self.most, 4 * count)
                    rate_so_far = self.backlog(worker, kind, count)["rate"]
                self.rates[kind] = rate_so_far
            self.rates["enqueue"] = rate(self.send("single", "noop", count=WARM))
            self.wait_for(self.sent, worker)

    def amount(self, kind: str) -> int:
        return max(FEWEST, min(self.most, int(self.rates[kind] * self.seconds)))

    def round(self) -> dict[str, Any]:
        """Take all figures once: rates in messages a second, latencies in ms, memory in MB."""
        found: dict[str, Any] = {}
        with self.working() as worker:
            time.sleep(SETTLES)
            began, counted = time.monotonic(), self.counted()
            time.sleep(2 * self.seconds)
            found["statements, idle"] = self.per(time.monotonic() - began, counted)
            found |= self.idle_latency(worker)
            found |= self.enqueue_and_consume(worker)
            for kind in self.facts["kinds"][1:]:
                found[f"consume {kind}"] = self.backlog(worker, kind, self.amount(kind))["rate"]
            found["memory"] = worker.memory()
            found |= self.loaded_latency(worker)
        return found

    def latencies(self) -> dict[str, Any]:
        """Take only the latencies once."""
        with self.working() as worker:
            time.sleep(SETTLES)
            return {**self.idle_latency(worker), **self.loaded_latency(worker)}

    def idle_latency(self, worker: Worker) -> dict[str, Any]:
        return {"latency, idle": self.latency([self.random.uniform(*GAPS) for _ in range(SAMPLES)], worker)}

    def loaded_latency(self, worker: Worker) -> dict[str, Any]:
        load = min(self.rates["noop"], self.rates["enqueue"]) / 2
        return {"load": load, "latency, half load": self.latency([1 / load] * int(2 * load * self.seconds), worker)}

    def enqueue_and_consume(self, worker: Worker) -> dict[str, Any]:
        """Send messages in three ways while the worker stands still, then let it handle them all."""
        found, total = {}, self.amount("noop")
        worker.hold()
        counted = self.counted()
        singles = self.send("single", "noop", count=max(FEWEST, total // 3), seconds=self.seconds / 2)
        found["enqueue"], found["statements, enqueue"] = rate(singles), self.per(singles["count"], counted)
        within = self.send("in_transaction", "noop", count=max(FEWEST, total // 6), seconds=self.seconds / 2)
        found["enqueue in a transaction"] = rate(within)
        sent = singles["count"] + within["count"]
        if self.facts["has_bulk"] and total > sent:
            bulk = self.send("many", "noop", count=max(FEWEST, total - sent))
            found["enqueue in bulk"] = rate(bulk)
            sent += bulk["count"]
        counted = self.counted()
        found["consume noop"] = self.release(worker, sent)
        time.sleep(SETTLES / 2)
        found["statements, consume"] = self.per(sent, counted)
        return found

    def backlog(self, worker: Worker, kind: str, count: int) -> dict[str, Any]:
        """Send messages while the worker stands still, and let it handle them."""
        worker.hold()
        sent = self.send("many", kind, count=count)
        return {**sent, "rate": self.release(worker, count)}

    def release(self, worker: Worker, count: int) -> float:
        """Let the worker handle what waits; return how many messages a second it handled after the first tenth."""
        before = count_notes(self.notes)
        worker.go_on()
        self.wait_for(before + count, worker)
        notes = sorted(note.handled for note in read_notes(self.notes, before))
        skipped = len(notes) // AMONG
        return 1e9 * (len(notes) - skipped) / max(1, notes[-1] - notes[skipped - 1])

    def latency(self, gaps: list[float], worker: Worker) -> list[float]:
        """Send messages with these gaps; return how long each took to its handler, in ms."""
        before = count_notes(self.notes)
        self.send("paced", "noop", gaps=gaps)
        self.wait_for(before + len(gaps), worker)
        return [delay(note) for note in read_notes(self.notes, before)]

    def counted(self) -> int:
        return self.count() if self.count else 0

    def per(self, amount: float, before: int) -> float | None:
        """Return the statements since then, for each of so many."""
        return (self.count() - before) / amount if self.count else None


def rate(answer: dict[str, Any]) -> float:
    return answer["count"] / answer["seconds"]


def delay(note: Note) -> float:
    return (note.handled - note.sent) / 1e6
