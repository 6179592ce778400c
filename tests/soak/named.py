"""Schedules named messages, replaces and cancels them, in several threads at once: all race for the same names.

A name is used for NAME_LASTS seconds, for messages that are due within about as long, so that the scheduler races with
them, too. Before each act it writes down what it is about to do ("offer"), and after the commit what it was told
("offered"): created, updated or ignored, or whether a cancellation came in time. What was taken back is "offer-back";
what got no answer stays in doubt.
"""

import itertools
import random
import threading
import time
from pathlib import Path
from typing import Any

from django.db import Error, connections, transaction

from tests.soak.backlog import wait_for_consumers
from tests.soak.history import Journal
from tests.soak.publisher import PAUSE_AFTER_AN_ERROR, RolledBack
from tests.soak.workload import NAMED, asks

NAME_LASTS = 2.0  # seconds
NAMES = 2  # at a time
PAUSE = 0.3  # seconds between two acts of a thread, on the average
LATEST = 2.0  # seconds: the longest delay
ACTS = {"schedule": 35, "replace": 30, "cancel": 25, "publish": 4, "replace-now": 6}


class NamedPublisher(threading.Thread):
    """One thread. numbers: those of the acts of all threads of this process; folder: the history's."""

    def __init__(
        self,
        name: str,
        process: str,
        journal: Journal,
        numbers: "itertools.count[int]",
        folder: Path,
        one_writer: bool,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.process, self.journal, self.stopping = process, journal, threading.Event()
        self._dice, self._numbers, self._folder = random.Random(name), numbers, folder
        self._open_for = 0.0 if one_writer else 0.1  # seconds for which its longer transactions are open

    def run(self) -> None:
        while not self.stopping.wait(self._dice.expovariate(1 / PAUSE)):
            wait_for_consumers(self._folder)
            self._act()
        connections.close_all()

    def _act(self) -> None:
        what = self._dice.choices(list(ACTS), list(ACTS.values()))[0]
        name = f"{self.process}/{int(time.monotonic() / NAME_LASTS)}/{self._dice.randrange(NAMES)}"
        number = next(self._numbers)
        delay = self._dice.uniform(0.2, LATEST)
        self.journal.note("offer", number, name, what, delay)
        in_transaction, gives_up, committing = self._dice.random() < 0.5, self._dice.random() < 0.1, False
        try:
            if in_transaction:
                with transaction.atomic():
                    told = self._do(what, name, number, delay)
                    self.stopping.wait(self._dice.uniform(0.0, self._open_for))
                    if gives_up:
                        raise RolledBack
                    committing = True
            else:
                committing = True
                told = self._do(what, name, number, delay)
        except (RolledBack, Error) as error:
            if not committing:  # whatever was wrong, this transaction has not been committed
                self.journal.note("offer-back", number)
            if isinstance(error, Error):
                connections.close_all()
                self.stopping.wait(PAUSE_AFTER_AN_ERROR)
        else:
            self.journal.note("offered", number, told)

    def _do(self, what: str, name: str, number: int, delay: float) -> Any:
        from sqlqueue import cancel, publish

        if what == "cancel":
            return cancel(NAMED, id=name, key=name)
        later: dict[str, Any] = {"delay": delay} if what in ("schedule", "replace") else {}
        choice: dict[str, Any] = {"on_conflict": "replace"} if what.startswith("replace") else {}
        do = asks(NAMED, self._dice, one_writer=False)
        return publish(NAMED, {"value": number, "do": do}, key=name, id=name, **later, **choice).status
