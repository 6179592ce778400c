"""The recorder: adds what this process has settled to the minutes' figures, and looks once a minute how far behind
everybody is."""

from __future__ import annotations

from sqlqueue.consumers.residents import Resident
from sqlqueue.consumers.tally import Tally
from sqlqueue.observe.activity import add, forget, looked_at, note_backlogs
from sqlqueue.observe.survey import survey

INTERVAL = 10.0  # seconds
FORGET_TURNS = 100  # once in so many turns


class Recorder(Resident):
    """See the module. Figures that the database did not take are lost: nothing is decided by them."""

    name = "recorder"

    def __init__(self, alias: str, tally: Tally):
        super().__init__(alias, INTERVAL)
        self.tally = tally
        self._turns = 0

    def turn(self) -> bool:
        """Add, look if nobody else has in this minute, and now and then forget what is old."""
        self.leave()
        if not looked_at(self.alias):
            note_backlogs(self.alias, survey(self.alias))
        if self._turns % FORGET_TURNS == 0:
            forget(self.alias)
        self._turns += 1
        return False

    def leave(self) -> None:
        """Add what was counted."""
        if figures := self.tally.take():
            add(self.alias, figures)
