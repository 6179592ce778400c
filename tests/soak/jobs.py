"""The publisher of everyday jobs: tasks, batches, messages that expire, and bursts for a group with limits; beside them
named messages (named.py) and calls (callers.py).

Of a task it writes down before the commit what it has enqueued ("task"), and after it that this was committed
("task-told") or taken back ("task-back"). A task that got no answer is not enqueued again: it is there, or not.
"""

import itertools
import os
import random
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import Error, connections, transaction

from tests.soak.callers import Caller, sockets_of_callers
from tests.soak.history import FOLDER
from tests.soak.named import NamedPublisher
from tests.soak.publisher import PAUSE_AFTER_AN_ERROR, Item, Publisher, RolledBack, run
from tests.soak.workload import CALLED, CROWDED, FLEETING, MEMBERS, TASK_WEIGHTS, asks

RATE = 3.0  # tasks and messages that expire, a second: other publishers are to make the load
BATCHES = 0.15  # of them for each of those
SCHEDULERS = 3  # threads that schedule, replace and cancel the same names
CALLERS = 2  # threads
BURST, BURST_EVERY = 32, 15.0  # messages, and seconds: more than the limit allows at once, less in the long run
BETWEEN = 0.4  # single ones between them, for each task or message that expires
LIFETIMES = (0.3, 3.0, 20.0)  # seconds: for less than a look at the log, for a retry, and for faults
SURELY_LATE = 8  # of so many messages that expire one fails at first, and is due again long after it has expired


@dataclass(frozen=True)
class FleetingItem(Item):
    """A message that expires so many seconds after it was published, or after it is due."""

    lifetime: float = 0.0
    delay: float | None = None


@dataclass(frozen=True)
class MemberItem(Item):
    """A member of the batch of this name."""

    batch: str = ""

    @property
    def payload(self) -> dict[str, str]:
        return {**super().payload, "batch": self.batch}


class JobPublisher(Publisher):
    """Publishes one job after another; its threads do what is done with names."""

    _of_batches: random.Random  # dice of their own: the others fall as they did without them
    _threads: tuple[NamedPublisher | Caller, ...] = ()
    _burst_at = 0.0
    _fleeting = 0

    def jobs(self) -> None:
        """One task, or one message that expires."""
        if not self._threads:
            numbers, folder = itertools.count(1), Path(os.environ[FOLDER])
            schedulers = (
                NamedPublisher(f"{self.name}/{n}", self.name, self.journal, numbers, folder, self._one_writer)
                for n in range(SCHEDULERS)
            )
            callers = (Caller(f"{self.name}/call{n}", self.name, self.journal, numbers, folder) for n in range(CALLERS))
            self._threads = (*schedulers, *callers)
            for thread in self._threads:
                thread.start()
            self._of_batches = random.Random(self.name)
        if time.monotonic() >= self._burst_at:
            self._burst_at = time.monotonic() + BURST_EVERY
            self._publish_crowd(BURST)
        elif self._of_batches.random() < BETWEEN:
            self._publish_crowd(1)
        if self._of_batches.random() < BATCHES:
            self._fill_batch()
        if self.dice.random() < 0.5:
            self._enqueue()
        else:
            self._publish_fleeting()
        time.sleep(self.dice.expovariate(RATE))

    def leave(self) -> None:
        for thread in self._threads:
            thread.stopping.set()
        for thread in self._threads:
            thread.join()
        self.journal.note("sockets", sockets_of_callers())

    def _enqueue(self) -> None:
        from django.utils import timezone

        from tests.soak.tasks import KINDS

        kind = self.dice.choices(list(TASK_WEIGHTS), list(TASK_WEIGHTS.values()))[0]
        arguments = [self.dice.randrange(1000), self.dice.randrange(1000)]
        task = KINDS[kind].using(priority=self.dice.randint(-100, 100))
        if self.dice.random() < 0.2:
            task = task.using(run_after=timezone.now() + timedelta(seconds=1))
        number = next(self._transactions)
        try:
            with transaction.atomic():
                result = task.enqueue(*arguments)
                self.journal.note("task", number, result.id, kind, sum(arguments))
                if self.dice.random() < 0.1:
                    raise RolledBack
        except RolledBack:
            self.journal.note("task-back", number)
        except Error:
            connections.close_all()
            time.sleep(PAUSE_AFTER_AN_ERROR)
        else:
            self.journal.note("task-told", number)

    def _fill_batch(self) -> None:
        """One batch of a few members, there as a whole or not at all; some members are taken back, and some batches
        given up."""
        from sqlqueue import Batch

        self._messages += 1
        name = f"{self.name}/{self._messages}"
        calls: Any = {
            f"on_{when}": (CALLED, {"id": f"{name}/{when}", "do": "ok", "batch": name, "when": when})
            for when in ("finish", "success", "failure")
        }
        members = [
            MemberItem(
                MEMBERS,
                f"{name}/{number % 3}",
                f"{name}/{number}",
                asks(MEMBERS, self._of_batches, self._one_writer),
                batch=name,
            )
            for number in range(self._of_batches.choice([0, 1, 3, 8]))
        ]
        taken_back = {item for item in members if self._of_batches.random() < 0.1}
        given_up = self._of_batches.random() < 0.1

        def fill(items: list[Item]) -> None:
            with Batch(name=name, **calls) as batch:
                for item in members:
                    self._publish_member(batch, item, item in taken_back)
                if given_up:
                    raise RolledBack

        self.journal.note("batch", name)
        kept: list[Item] = [item for item in members if item not in taken_back]
        told = self.carry_out(kept, fill, again=False)
        if told or given_up:
            self.journal.note("batch-told", name, told)

    def _publish_crowd(self, count: int) -> None:
        """Messages at once for a group with limits, and for one whose partitions are shared."""
        from sqlqueue import NewMessage, publish_many

        def write(items: list[Item]) -> None:
            publish_many(CROWDED, [NewMessage(item.payload, key=item.key, id=item.id) for item in items])

        ids = [f"{self.name}/{self._messages + number}" for number in range(1, count + 1)]
        self._messages += count
        self.carry_out([Item(CROWDED, id, id, "slow") for id in ids], write)

    def _publish_member(self, batch: Any, item: Item, back: bool) -> None:
        with suppress(RolledBack), transaction.atomic() if back else nullcontext():
            batch.publish(item.topic, item.payload, key=item.key, id=item.id)
            if back:
                raise RolledBack

    def _publish_fleeting(self) -> None:
        from sqlqueue import publish

        def write(items: list[Item]) -> None:
            for item in items:
                assert isinstance(item, FleetingItem)
                publish(item.topic, item.payload, key=item.key, id=item.id, expires=item.lifetime, delay=item.delay)

        self._messages += 1
        lifetime = self.dice.choice(LIFETIMES) * self.dice.uniform(0.5, 1.5)
        delay = self.dice.choice([None, None, self.dice.uniform(0.1, 1.5)])
        do = asks(FLEETING, self.dice, self._one_writer)
        if self._fleeting % SURELY_LATE == 0:
            do, lifetime, delay = "later", 1.0, None
        self._fleeting += 1
        item = FleetingItem(FLEETING, self.name, f"{self.name}/{self._messages}", do, 0, lifetime, delay)
        self.carry_out([item], write)


WAYS = ("jobs",)

if __name__ == "__main__":
    run(JobPublisher, WAYS)
