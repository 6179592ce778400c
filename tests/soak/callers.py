"""Calls, and waits for the replies: threads that write down what they ask for ("ask") and what came of it ("answer").

Some wait for less than any reply takes; now and then a few messages are published for which nobody waits. A call that
has no answer in the history was cut short with its process.
"""

import gc
import itertools
import random
import threading
import time
from pathlib import Path

from django.db import Error, connections

from tests.soak.backlog import wait_for_consumers
from tests.soak.history import Journal
from tests.soak.publisher import PAUSE_AFTER_AN_ERROR
from tests.soak.workload import REQUESTS, asks

PAUSE = 1.5  # seconds between two calls of a thread, on the average
TIMEOUTS = (0.03, 3.0, 10.0)  # seconds: for less than any reply, for a usual one, and for one of a successor
FOR = ("clerk", "deputy", "both")  # what the header and the payload say: the deputy's filter looks at them
KEPT_OPEN = 5.0  # seconds without a call for which a thread keeps its connection: a fault before them may have cut it
FETCHED_WITHIN = 5.0  # seconds: so the rows of replies are gone before the run is judged


class Caller(threading.Thread):
    """One thread. numbers: those of the calls of all threads of this process; folder: the history's."""

    def __init__(
        self, name: str, process: str, journal: Journal, numbers: "itertools.count[int]", folder: Path
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.process, self.journal, self.stopping = process, journal, threading.Event()
        self._dice, self._numbers, self._folder = random.Random(name), numbers, folder

    def run(self) -> None:
        from sqlqueue.log import calls

        calls.FETCHED_WITHIN = FETCHED_WITHIN
        waits_since = time.monotonic()
        while not self.stopping.wait(self._dice.expovariate(1 / PAUSE)):
            wait_for_consumers(self._folder)
            if time.monotonic() - waits_since >= KEPT_OPEN:
                connections.close_all()
            if self._dice.random() < 0.2:
                self._publish()
            self._call()
            waits_since = time.monotonic()
        connections.close_all()

    def _message(self) -> tuple[int, str, dict[str, object]]:
        """Return a message's number, its header and its payload."""
        number, whom = next(self._numbers), self._dice.choice(FOR)
        value, do = self._dice.randrange(100), asks(REQUESTS, self._dice, one_writer=False)
        return number, whom, {"id": f"{self.process}/{number}", "do": do, "for": whom, "value": value}

    def _publish(self) -> None:
        from sqlqueue import NewMessage, publish_many

        some = [self._message() for _ in range(5)]
        try:
            publish_many(REQUESTS, [NewMessage(payload, headers={"for": whom}) for _, whom, payload in some])
        except Error:
            connections.close_all()
            self.stopping.wait(PAUSE_AFTER_AN_ERROR)

    def _call(self) -> None:
        from sqlqueue import CallFailed, call

        number, whom, payload = self._message()
        timeout, group = self._dice.choice(TIMEOUTS), "clerk" if self._dice.random() < 0.2 else ""
        self.journal.note("ask", number, payload["id"], timeout)
        try:
            reply = call(REQUESTS, payload, headers={"for": whom}, timeout=timeout, group=group)
        except CallFailed as failed:
            self.journal.note("answer", number, "failed", failed.group)
        except TimeoutError:
            self.journal.note("answer", number, "timeout", None)
        except Error as error:
            self.journal.note("answer", number, "error", repr(error)[:200])
            connections.close_all()
            time.sleep(PAUSE_AFTER_AN_ERROR)
        else:
            self.journal.note("answer", number, "reply", reply)


def sockets_of_callers() -> int:
    """Return how many this process has open: those by which callers are woken, as long as they wait."""
    from sqlqueue.log.settle_notices import SettleWatch

    watches = [one for one in gc.get_objects() if isinstance(one, SettleWatch)]
    return sum(one._socket.fileno() >= 0 for one in watches)
