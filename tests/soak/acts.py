"""What the phases publish: `python -m tests.soak.acts PHASE` does one, and ends. phases.py says what each is for."""

import argparse
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import django
from django.db import Error, connection, connections, transaction
from django.db.models import Count

from tests.logs import LOG
from tests.soak.history import FOLDER, Journal
from tests.soak.person import Person
from tests.soak.publisher import Item, Publisher, RolledBack
from tests.soak.workload import DEAD_LETTERS, PACKET, WINDOW

AT_ONCE = 500
# How many burst, stand behind a key's head, and fail together.
ON_A_SERVER, WITH_ONE_WRITER = (30_000, 3_000, 400), (12_000, 1_500, 100)
BEGUN = 10.0  # seconds in which a transaction has begun, or the database is away
INSISTS = 20.0  # seconds for which a publish is tried that fails: longer than any fault of the database
AWAIT = 3.0  # seconds in which dead letters come
LONGEST = 45.0  # seconds for which a transaction is open at most, beyond those that it was told


class Actor(Publisher):
    """One process of one phase. Its messages' ids begin with the phase's name and number."""

    def __init__(self, name: str, journal: Journal, dice: random.Random) -> None:
        super().__init__(name, journal, dice, 1.0, 1.0)
        self.many, self.behind, self.failing = WITH_ONE_WRITER if self._one_writer else ON_A_SERVER

    def make(self, topic: str, key: str = "{}", count: int = 1, do: str = "ok", fill: int = 0) -> list[Item]:
        """Make up messages of one key, or of many that differ where it has braces, which ask for the same."""
        made = []
        for _ in range(count):
            self._messages += 1
            own = key.format(self.dice.randrange(40))
            made.append(Item(topic, f"{self.name}/{own}", f"{self.name}/{self._messages}", do, fill))
        return made

    # -- the phases ---------------------------------------------------------------------------------------------------

    def burst(self, seconds: float) -> None:
        """Everything at full speed while a transaction is open; the windows fill beyond it, however long that takes."""
        batches = [self.make("flood", "{}", AT_ONCE) for _ in range(self.many // AT_ONCE)]
        with self.held(self.make("orders", "held"), seconds, until=window_is_full):
            for batch in batches:
                self.insist(batch, publish_together)

    def waiting(self, seconds: float) -> None:
        """A key's first message waits; thousands of its own stand behind it, and other keys' go on."""
        self.insist(self.make("waiting", "head", do="wait"), publish_one)
        time.sleep(1.0)
        for _ in range(self.behind // 500):
            self.insist(self.make("waiting", "head", 500), publish_together)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.insist(self.make("waiting", f"other{self._messages % 7}"), self.publish_slowly)
            time.sleep(0.1)

    def heavy(self, seconds: float) -> None:
        """What is too much together, and what alone is nearly too much, and dies."""
        for size in (
            *(PACKET - 400 - 64 * step for step in range(12)),
            *(PACKET * part // 100 for part in (97, 90, 70)),
        ):
            if self.carry_out(self.make("heavy", "large", do="reject", fill=size), publish_one, again=False):
                break
        else:
            self.wrong("no payload of 70 percent of a packet was taken")
        for _ in range(10):
            # Those get their offsets when they are due: they are in no order with what is published at once.
            self.insist(self.make("heavy", "later{}", 40, fill=4_000), publish_later)
        self.insist(self.make("heavy", "{}", 20, fill=PACKET // 10), publish_together)
        time.sleep(seconds)

    def errors(self, seconds: float) -> None:
        """Batches that fail: each of their messages has the long error, in one settle."""
        self.insist(self.make("flood", "{}", self.failing, do="fail-long"), publish_together)
        time.sleep(seconds)

    def language(self, seconds: float) -> None:
        """Some are there already: how many were new is told right whatever the server's language."""
        items = self.make("flood", "{}", 20)
        self.insist(items, publish_together)
        more = self.make("flood", "{}", 5)
        told: list[int] = []
        self.insist(more, lambda more: told.append(publish_together([*items, *more])))
        if told and told[-1] > len(more):
            self.wrong(f"{told[-1]} of {len(items) + len(more)} were new, as it was told, and {len(more)} were")
        time.sleep(seconds)

    def hung_event_loop(self, seconds: float) -> None:
        """Handlers that hold up their event loop, and others that need it."""
        self.insist(self.make("orders", "blocks", do="block"), publish_one)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.insist(self.make("orders"), publish_one)
            time.sleep(0.1)

    def dead_letters(self, seconds: float) -> None:
        """A dead letter takes its offset, and commits after an operator has discarded or replayed later ones."""
        person = Person(self.journal, self.dice)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self.held(self.make(DEAD_LETTERS, "late"), 0.1):  # it ends right behind the discards
                self.insist(self.make("doomed", "{}", 6, do="reject-once"), publish_together)
                person.await_dead_letters(AWAIT)
                person.discard_some()
            person.replay_one()

    # -- ways of publishing -------------------------------------------------------------------------------------------

    def held(self, items: list[Item], seconds: float, until: Callable[[], bool] = lambda: True) -> "Held":
        """Return a context in which a transaction that has published this is open, for so many seconds, and until this
        is so. Where there is one writer it is empty."""
        return Held(self, items, 0.0 if self._one_writer else seconds, until)

    def publish_slowly(self, items: list[Item]) -> None:
        """Publish in a transaction of the usual length."""
        with transaction.atomic():
            publish_one(items)
            time.sleep(0.0 if self._one_writer else 0.03)

    def insist(self, items: list[Item], write: Callable[[list[Item]], object]) -> None:
        """Publish what has to be taken; note it if it is not, however often it is tried."""
        failed: list[Exception] = []

        def noted(items: list[Item]) -> None:
            try:
                write(items)
            except Exception as error:
                failed.append(error)
                raise

        try:
            taken = self.carry_out(items, noted, until=time.monotonic() + INSISTS)
        except Exception:  # what no database says: noted as well, with what was meant to be published
            taken = False
        if not taken:
            self.wrong(f"{len(items)} messages for {items[0].topic} were not taken: {failed[-1]!r}")

    def wrong(self, what: str) -> None:
        """Note that a publisher was refused, or told what is not so."""
        self.journal.note("wrong", what[:500])


class Held:
    """An open transaction that has published, in a thread of its own."""

    def __init__(self, actor: Actor, items: list[Item], seconds: float, until: Callable[[], bool]) -> None:
        self._actor, self._items, self._seconds, self._until = actor, items, seconds, until
        self._asked_to_end = threading.Event()
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        if self._seconds:
            self._thread.start()
            self._opened.wait(BEGUN)

    def __exit__(self, *_: object) -> None:
        if self._seconds:
            deadline = time.monotonic() + LONGEST
            while self._thread.is_alive() and time.monotonic() < deadline and not self._until():
                time.sleep(0.2)
            self._asked_to_end.set()
            self._thread.join()

    def _run(self) -> None:
        def write(items: list[Item]) -> None:
            with transaction.atomic():
                (add_dead_letters if items[0].topic == DEAD_LETTERS else publish_one)(items)
                self._opened.set()
                deadline = time.monotonic() + self._seconds
                # Never idle for long: there are servers that end such connections.
                while time.monotonic() < deadline or not self._asked_to_end.is_set():
                    with connection.cursor() as cursor:
                        cursor.execute("SELECT 1")
                    time.sleep(0.02)

        try:
            self._actor.carry_out(self._items, write, again=False)
        finally:
            self._opened.set()
            connections.close_all()


def window_is_full() -> bool:
    """Tell whether nearly as many of a partition's acks wait for the horizon as may: they are rows of the table."""
    from sqlqueue.models import DeliveryState

    try:
        rows = DeliveryState.objects.filter(topic="flood", acked=True).values("partition").annotate(count=Count("id"))
        return max((row["count"] for row in rows), default=0) >= WINDOW * 0.95
    except Error:
        connections.close_all()
        return False


def publish_one(items: list[Item]) -> None:
    """Publish one message, or several with a statement each."""
    from sqlqueue import InvalidMessage, publish

    try:
        for item in items:
            publish(item.topic, item.payload, key=item.key, id=item.id)
    except InvalidMessage as error:
        raise RolledBack from error


def add_dead_letters(items: list[Item]) -> None:
    """Add dead letters past publish, which refuses their topic. It has one partition."""
    from sqlqueue.core.codec import encode
    from sqlqueue.database.gate import insert_one
    from sqlqueue.database.insert_sql import LogRow

    for item in items:
        row = LogRow(item.topic, 0, 0, item.key, item.id, encode(item.payload), None, "")
        insert_one(LOG, row, may_repeat=True)


def publish_together(items: list[Item]) -> int:
    """Publish in bulk; return how many were new."""
    from sqlqueue import NewMessage, publish_many

    messages = [NewMessage(item.payload, key=item.key, id=item.id) for item in items]
    return publish_many(items[0].topic, messages).created


def publish_later(items: list[Item]) -> None:
    """Publish what is due at once, by way of the schedule."""
    from sqlqueue import publish

    with transaction.atomic():
        for item in items:
            publish(item.topic, item.payload, key=item.key, id=item.id, delay=0.5)


ACTS = ("burst", "waiting", "heavy", "errors", "language", "dead-letters", "hung-event-loop")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("act", choices=ACTS)
    parser.add_argument("--name", required=True, help="unique in the run: part of keys and ids")
    parser.add_argument("--seed", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    django.setup()
    journal = Journal(Path(os.environ[FOLDER]), "phase")
    actor = Actor(options.name, journal, random.Random(options.seed))
    getattr(actor, options.act.replace("-", "_"))(options.seconds)
    journal.note("left", options.name)


if __name__ == "__main__":
    main()
