"""The publisher of long jobs, and of messages of other groups beside them, which must not wait for their handlers.

In every other round the long jobs come first, and in the others they come last: together with what is quick, or after
it.
"""

import itertools
import time

from sqlqueue.core.keys import partition_of
from tests.soak.publisher import Item, Publisher, run
from tests.soak.workload import APART_TOPICS, BRIEF, LABOR, THREADS

ROUND = 26.0  # seconds: more than a process with one thread is busy with the jobs of a partition
BUSY = 14.0  # seconds of a round in which quick messages follow
QUICK, QUICK_EVERY = 6, 0.4  # at once, and seconds between single ones
JOBS = THREADS  # of each partition


class LaborPublisher(Publisher):
    """Publishes in rounds."""

    _rounds = itertools.count()

    def labor(self) -> None:
        """One round."""
        ends, quiet_from = time.monotonic() + ROUND, time.monotonic() + BUSY
        long = [item for number in range(APART_TOPICS[LABOR]) for item in self._items(LABOR, JOBS, "long", number)]
        quick = [item for number in range(APART_TOPICS[BRIEF]) for item in self._items(BRIEF, QUICK, "ok", number)]
        for some in (long, quick) if next(self._rounds) % 2 else (quick, long):
            self.carry_out(some, self._write)
        while not self.stopping and time.monotonic() < quiet_from:
            time.sleep(QUICK_EVERY)
            self.carry_out(self._items(BRIEF, 1, "ok", self._messages % APART_TOPICS[BRIEF]), self._write)
        while not self.stopping and time.monotonic() < ends:
            time.sleep(QUICK_EVERY)

    def _items(self, topic: str, count: int, do: str, partition: int) -> list[Item]:
        """Make messages for a partition up."""
        made = []
        while len(made) < count:
            self._messages += 1
            name = f"{self.name}/{self._messages}"
            if partition_of(name, APART_TOPICS[topic]) == partition:
                made.append(Item(topic, name, name, do))
        return made

    def _write(self, items: list[Item]) -> None:
        from sqlqueue import NewMessage, publish_many

        publish_many(items[0].topic, [NewMessage(item.payload, key=item.key, id=item.id) for item in items])


WAYS = ("labor",)

if __name__ == "__main__":
    run(LaborPublisher, WAYS)
