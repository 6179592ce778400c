"""A person who looks after dead letters: discards some, and has others delivered again, as the admin's verbs do."""

import random
import time
from typing import Any

from django.db import Error, connections

from tests.soak.history import Journal

TOPIC, GROUP = "doomed", "judge"
REPLAYED_WITHIN = 10.0  # seconds: then nothing is told of the replay


class Person:
    """Notes what is done before it is done: "removed" letters are in the tables no more."""

    def __init__(self, journal: Journal, dice: random.Random) -> None:
        self.journal, self.dice = journal, dice
        self._replays = 0

    def await_letters(self, seconds: float) -> None:
        """Wait for some, and up to two seconds longer, in which they are read or not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(self._letters()) < 4:
            time.sleep(0.05)
        time.sleep(self.dice.uniform(0.2, 2.0))

    def discard_some(self) -> None:
        """Discard half of them."""
        from sqlqueue import discard

        letters = self._letters()
        some = self.dice.sample(letters, len(letters) // 2)
        self._note_removed(some)
        try:
            discard(TOPIC, offsets=[letter.offset for letter in some])
        except Error:
            connections.close_all()

    def replay_one(self) -> None:
        """Order one to be delivered again, and wait until it has been."""
        from sqlqueue.conf import settings
        from sqlqueue.log import replay

        letters = self._letters()
        if not letters:
            return
        letter = self.dice.choice(letters)
        self._replays += 1
        number = -self._replays
        self._note_removed([letter])
        # To the checker it is a message of its own: that is what the log has.
        self.journal.note("publish", number, [[TOPIC, letter.partition_key, f"redrive:{letter.offset}"]])
        try:
            order = replay.order(settings.DATABASE, TOPIC, offsets=[letter.offset])
            if self._is_done(order):
                self.journal.note("told", number)
        except Error as error:
            self.journal.note("doubt", number, repr(error)[:200])
            connections.close_all()

    def _is_done(self, order: Any) -> bool:
        deadline = time.monotonic() + REPLAYED_WITHIN
        while time.monotonic() < deadline:
            order.refresh_from_db()
            if order.done:
                return True
            time.sleep(0.1)
        return False

    def _letters(self) -> list[Any]:
        from sqlqueue.models import Message

        try:
            return list(Message.objects.dead_letters(GROUP, TOPIC).order_by("offset"))
        except Error:
            connections.close_all()
            return []

    def _note_removed(self, letters: list[Any]) -> None:
        self.journal.note_all("removed", [(TOPIC, GROUP, letter.payload["id"]) for letter in letters])
