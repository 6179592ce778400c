"""Publishers as adverse as applications can be: side by side, slow to commit, now and then rolling back."""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import connection, connections, transaction

from sqlqueue import NewMessage, publish, publish_many
from tests.servers.session import place_of_the_last_insert

TOPIC = "adverse"
PATIENCE = 60.0  # seconds

Write = Callable[[list[str]], int]


def one_by_one(names: list[str]) -> int:
    """Publish each in a statement of its own; return the offset of the first."""
    offsets = [publish(TOPIC, {"id": name}, key=name[-1], id=name).offset for name in names]
    return offsets[0] or 0


def in_bulk(names: list[str]) -> int:
    """Publish all in one statement; return the offset of one."""
    publish_many(TOPIC, [NewMessage({"id": name}, key=name[-1], id=name) for name in names])
    return place_of_the_last_insert()


def by_plain_sql(names: list[str]) -> int:
    """Publish as a program in any language can; return the id of one, on its way into the log."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO sqlqueue_scheduled_message (topic, partition_key, message_id, payload)"
            " VALUES (%s, %s, %s, %s)",
            [(TOPIC, name[-1], name, "{}") for name in names],
        )
    return place_of_the_last_insert()


class Rollback(Exception):
    """Takes back a savepoint, or the whole transaction."""


class NaiveReader:
    """Reads what lies beyond the highest number that it has seen. It is here to miss messages."""

    def __init__(self, table: str, place: str) -> None:
        self._select = f"SELECT MAX({place}) FROM {table} WHERE {place} > %s"
        self.position = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="naive reader", daemon=True)

    def __enter__(self) -> "NaiveReader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with connection.cursor() as cursor:
                while not self._stopping.wait(0.002):
                    cursor.execute(self._select, [self.position])
                    self.position = max(self.position, cursor.fetchone()[0] or 0)
        finally:
            connections.close_all()


class Publishers:
    """Several threads, each with one transaction after another until the time is up and `enough` has happened.

    committed: the ids of all messages that were committed; overtaken: of some that were committed behind a naive
    reader's position, so that it never sees them.
    """

    def __init__(
        self,
        write: Write,
        naive: NaiveReader,
        enough: Callable[["Publishers"], object],
        *,
        threads: int,
        seconds: float,
        pause: float,
    ) -> None:
        self._write, self._naive, self._enough = write, naive, enough
        self._threads, self._seconds, self._pause = threads, seconds, pause
        self._name = uuid.uuid4().hex[:8]  # ids that no earlier test has used: see test_late_commits
        self._lock = threading.Lock()
        self.committed: set[str] = set()
        self.overtaken: set[str] = set()
        self.happened: Counter[str] = Counter()

    def run(self) -> None:
        """Publish until that is so, or the time is up; raise what a publisher raises."""
        self._began = time.monotonic()
        with ThreadPoolExecutor(self._threads) as pool:
            for done in [pool.submit(self._publish, number) for number in range(self._threads)]:
                done.result()

    def _publish(self, number: int) -> None:
        dice = random.Random(number)
        serial = 0
        try:
            while self._goes_on():
                serial += 1
                names = [f"{self._name}-{number}-{serial}-{each}" for each in range(dice.randint(1, 4))]
                try:
                    kept = self._transaction(dice, names)
                except Rollback:
                    kept = []
                with self._lock:
                    self.committed.update(kept)
                    self.happened["commits" if kept else "rollbacks"] += 1
        finally:
            connections.close_all()

    def _goes_on(self) -> bool:
        passed = time.monotonic() - self._began
        with self._lock:
            return passed < self._seconds or (passed < PATIENCE and not self._enough(self))

    def _transaction(self, dice: random.Random, names: list[str]) -> list[str]:
        """Write the messages in a transaction that takes its time; return those that it has committed."""
        kept: list[str] = []
        with transaction.atomic():
            if dice.random() < 0.2:
                roll_back_to_a_savepoint(self._write, [f"{name}-never" for name in names])
            if dice.random() < 0.2:
                with transaction.atomic():  # a savepoint that stays
                    place = self._write(names)
            else:
                place = self._write(names)
            kept += names
            time.sleep(dice.random() * self._pause)
            if dice.random() < 0.2:
                more = [f"{name}-more" for name in names]
                self._write(more)
                kept += more
            if dice.random() < 0.15:
                raise Rollback
            overtaken = 0 < place <= self._naive.position
        if overtaken:
            self.overtaken.add(names[0])
        return kept


def roll_back_to_a_savepoint(write: Write, names: list[str]) -> None:
    """Write messages and take them back, inside a transaction that goes on."""
    try:
        with transaction.atomic():
            write(names)
            raise Rollback
    except Rollback:
        pass
