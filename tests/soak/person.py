"""A person who looks after dead letters: discards some, and has others delivered again, as the admin's operations
do."""

import random
import time
from typing import Any

from django.db import Error, connections

from sqlqueue.database.log import Log
from tests.soak.history import Journal

TOPIC, GROUP = "doomed", "judge"
REPLAYED_WITHIN = 10.0  # seconds: then nothing is told of the replay


class Person:
    """Notes what is done before it is done: "removed" dead letters are in the tables no more."""

    def __init__(self, journal: Journal, dice: random.Random) -> None:
        self.journal, self.dice = journal, dice
        self._replays = 0

    def await_dead_letters(self, seconds: float) -> None:
        """Wait for some, and up to two seconds longer, in which they are read or not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(self._dead_letters()) < 4:
            time.sleep(0.05)
        time.sleep(self.dice.uniform(0.2, 2.0))

    def discard_some(self) -> None:
        """Discard half of them."""
        from sqlqueue import discard

        dead_letters = self._dead_letters()
        some = self.dice.sample(dead_letters, len(dead_letters) // 2)
        self._note_removed(some)
        try:
            discard(TOPIC, offsets=[dead_letter.offset for dead_letter in some])
        except Error:
            connections.close_all()

    def replay_one(self) -> None:
        """Order one to be delivered again, and wait until it has been."""
        from sqlqueue.conf import settings
        from sqlqueue.operations import replay_requests

        dead_letters = self._dead_letters()
        if not dead_letters:
            return
        dead_letter = self.dice.choice(dead_letters)
        self._replays += 1
        number = -self._replays
        self._note_removed([dead_letter])
        # To the checker it is a message of its own: that is what the log has.
        self.journal.note("publish", number, [[TOPIC, dead_letter.partition_key, f"replay:{dead_letter.offset}"]])
        try:
            order = replay_requests.request_replay(Log.of(settings.DATABASE), TOPIC, offsets=[dead_letter.offset])
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

    def _dead_letters(self) -> list[Any]:
        from sqlqueue.models import Message

        try:
            return list(Message.objects.dead_letters(GROUP, TOPIC).order_by("offset"))
        except Error:
            connections.close_all()
            return []

    def _note_removed(self, dead_letters: list[Any]) -> None:
        self.journal.note_all("removed", [(TOPIC, GROUP, dead_letter.payload["id"]) for dead_letter in dead_letters])
