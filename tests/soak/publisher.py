"""A publisher: a process that publishes in its own way until it is stopped, and writes down what it was told.

Before a transaction it writes down what it is about to publish ("publish"), and after the commit that it was told so
("told"), or that it took it back ("back"). One that gets no answer tries again with the same ids until it gets one,
as an application would. Long transactions are not tried again: they stay in doubt, and must be there whole or not at
all.
"""

import argparse
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import django
from django.db import Error, connection, connections, transaction

from tests.soak.backlog import wait_for_consumers
from tests.soak.history import FOLDER, Journal
from tests.soak.workload import asks

KEYS = 12
MEAN_BULK = 160  # messages
PAUSE_AFTER_AN_ERROR = 0.2
DOUBTS = 0.05  # how often a publisher takes an answer for lost that it had, and publishes the same once more
LONGEST_DOUBT = 1.0  # seconds


@dataclass(frozen=True)
class Item:
    """One message to be published."""

    topic: str
    key: str
    id: str
    do: str
    fill: int = 0  # characters that make it large

    @property
    def payload(self) -> dict[str, str]:
        return {"id": self.id, "do": self.do} | ({"fill": "x" * self.fill} if self.fill else {})


class RolledBack(Exception):
    """Takes a transaction, or a savepoint, back."""


class Publisher:
    """What the ways of publishing have in common."""

    def __init__(self, name: str, journal: Journal, dice: random.Random, rate: float, bulk_rate: float) -> None:
        self.name, self.journal, self.dice, self.rate, self.bulk_rate = name, journal, dice, rate, bulk_rate
        self.stopping = False
        self._one_writer = connection.vendor == "sqlite"  # a transaction that takes its time holds up everybody
        self._transactions = itertools.count(1)
        self._messages = 0

    def items(self, topic: str, count: int) -> list[Item]:
        """Make up messages; the keys are this process's own."""
        made = []
        for _ in range(count):
            self._messages += 1
            key = f"{self.name}/{self.dice.randrange(KEYS)}"
            made.append(Item(topic, key, f"{self.name}/{self._messages}", asks(topic, self.dice, self._one_writer)))
        return made

    def carry_out(
        self,
        items: list[Item],
        write: Callable[[list[Item]], object],
        again: bool = True,
        until: float = float("inf"),
        doubts: bool = False,
        relayed_by: str = "",
    ) -> bool:
        """Publish in a transaction of `write`'s own, again and again (until then) if need be; write down what is said
        of it. Return whether it was committed, as far as was told. doubts: now and then it takes the answer for lost,
        and tries again: the same ids may come once the topic's partitions have been changed. relayed_by: the database
        that relays those of others."""
        number = next(self._transactions)
        doubts = doubts and self.dice.random() < DOUBTS
        self.journal.note("publish", number, [[item.topic, item.key, item.id] for item in items])
        if relayed_by:
            self.journal.note("relays", number, relayed_by)
        while True:
            try:
                write(items)
            except RolledBack:
                self.journal.note("back", number)
                return False
            except Error as error:
                self.journal.note("doubt", number, repr(error)[:200])
                self.after_an_error()
                if not again or self.stopping or time.monotonic() > until:
                    return False
            else:
                if not doubts or self.stopping:
                    self.journal.note("told", number)
                    return True
                doubts = False
                self.journal.note("doubt", number, "as if the answer were lost")
                time.sleep(self.dice.random() * LONGEST_DOUBT)

    def after_an_error(self) -> None:
        """Begin anew, a little later."""
        connections.close_all()
        time.sleep(PAUSE_AFTER_AN_ERROR)

    def leave(self) -> None:
        """End what goes on beside its way of publishing."""

    def single(self) -> None:
        """One message at a time, in autocommit or in a small transaction; some are rolled back."""
        from sqlqueue import publish

        topic = self.dice.choices(["orders", "ledger", "strict", "deadly"], [10, 5, 3, 0.08])[0]
        way = self.dice.random()

        def write(items: list[Item]) -> None:
            if way < 0.5:
                publish(items[0].topic, items[0].payload, key=items[0].key, id=items[0].id)
                return
            with transaction.atomic():
                publish(items[0].topic, items[0].payload, key=items[0].key, id=items[0].id)
                if way > 0.9:
                    raise RolledBack

        self.carry_out(self.items(topic, 1), write, doubts=True)
        time.sleep(self.dice.expovariate(self.rate))

    def bulk(self) -> None:
        """Many messages with one statement."""
        from sqlqueue import NewMessage, publish_many

        def write(items: list[Item]) -> None:
            publish_many("bulk", [NewMessage(item.payload, key=item.key, id=item.id) for item in items])

        count = self.dice.randint(20, 2 * MEAN_BULK - 20)
        self.carry_out(self.items("bulk", count), write, doubts=True)
        time.sleep(self.dice.expovariate(self.bulk_rate / MEAN_BULK))

    def long(self) -> None:
        """Transactions of up to some seconds, with savepoints, some of them taken back."""
        from sqlqueue import publish

        items = self.items(self.dice.choice(["orders", "ledger", "strict", "bulk"]), self.dice.randint(1, 8))
        pauses = [self.dice.expovariate(1 / self.dice.choice([0.01, 0.05, 0.4])) for _ in items]
        nested = [self.dice.random() < 0.3 for _ in items]
        gives_up = self.dice.random() < 0.2

        def write(items: list[Item]) -> None:
            with transaction.atomic():
                for item, pause, savepoint in zip(items, pauses, nested):
                    if savepoint:
                        self._take_back(item)
                    publish(item.topic, item.payload, key=item.key, id=item.id)
                    time.sleep(min(pause, 3.0) * (0.05 if self._one_writer else 1.0))
                if gives_up:
                    raise RolledBack

        self.carry_out(items, write, again=False)
        if self._one_writer:
            time.sleep(self.dice.expovariate(5))

    def _take_back(self, item: Item) -> None:
        """Publish something inside a savepoint that is rolled back."""
        from sqlqueue import publish

        never = f"{item.id}-never"
        try:
            with transaction.atomic():
                publish(item.topic, {"id": never, "do": "ok"}, key=item.key, id=never)
                raise RolledBack
        except RolledBack:
            pass

    def sql(self) -> None:
        """Plain INSERTs, as any language can, and messages that are due later."""
        from sqlqueue import publish

        later = self.dice.random() < 0.2

        def insert(items: list[Item]) -> None:
            with connection.cursor() as cursor:
                for item in items:
                    cursor.execute(
                        "INSERT INTO sqlqueue_scheduled_message (topic, partition_key, message_id, payload)"
                        " VALUES (%s, %s, %s, %s)",
                        [item.topic, item.key, item.id, json.dumps(item.payload)],
                    )

        def delay(items: list[Item]) -> None:
            with transaction.atomic():
                for item in items:
                    publish(item.topic, item.payload, key=item.key, id=item.id, delay=2)

        items = self.items(self.dice.choice(["orders", "ledger"]), 1)
        if later:
            items = [Item(item.topic, f"{item.key}-later", item.id, item.do) for item in items]
        self.carry_out(items, delay if later else insert, again=False)
        time.sleep(self.dice.expovariate(self.rate / 4))


WAYS = ("single", "bulk", "long", "sql")


def run(kind: type[Publisher], ways: Sequence[str]) -> None:
    """Publish in one of these ways until SIGTERM: a process's main()."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=ways, required=True)
    parser.add_argument("--name", required=True, help="unique in the run: part of keys and ids")
    parser.add_argument("--seed", required=True)
    parser.add_argument("--rate", type=float, required=True, help="single messages a second, as far as it goes")
    parser.add_argument("--bulk-rate", type=float, required=True, help="messages in bulk a second")
    options = parser.parse_args()
    django.setup()
    folder = Path(os.environ[FOLDER])
    journal = Journal(folder, "publisher")
    publisher = kind(options.name, journal, random.Random(options.seed), options.rate, options.bulk_rate)

    def stop(*_: object) -> None:
        publisher.stopping = True

    signal.signal(signal.SIGTERM, stop)
    while not publisher.stopping:
        wait_for_consumers(folder)
        getattr(publisher, options.way)()
    publisher.leave()
    journal.note("left", options.name)


if __name__ == "__main__":
    run(Publisher, WAYS)
