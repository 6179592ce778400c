"""Suspects, which a former owner had in hand when it ended, are handed out alone: nothing else is in hand in the whole
process meanwhile, so that the one that ends processes is found. There may be hundreds of them. So they take turns with
everything else, which is never kept waiting for much longer than a turn lasts; and their streams take turns, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlqueue.core.stream import Address, Stream

TURN: Final = 1.0  # seconds of one suspect after another; then everything else has its turn, for as long


class SuspectTurns:
    """Whose turn it is. Times are monotonic."""

    def __init__(self) -> None:
        self._waits_since: float | None = None  # from when on nothing else was handed out
        self._began: float | None = None  # when the first suspect of this turn was handed out
        self._others_until = 0.0
        self._served: dict[Address, int] = {}  # by stream: which of all hand-outs was its last

    def of_others(self, now: float) -> bool:
        """It is the turn of everything else."""
        return now < self._others_until

    def wait(self, now: float) -> None:
        """A suspect waits until nothing else is in hand; nothing else is handed out meanwhile."""
        if self._waits_since is None:
            self._waits_since = now

    def go_on(self, now: float) -> bool:
        """Tell whether a suspect may be handed out now. If not, the turn of everything else has begun: it lasts as long
        as this one did, with the time for which that was waited for."""
        self.wait(now)
        if self._began is None:
            self._began = now
        if now - self._began < TURN:
            return True
        assert self._waits_since is not None
        self._others_until = now + (now - self._waits_since)
        self._waits_since = self._began = None
        return False

    def in_turn(self, streams: Iterable[Stream]) -> list[Stream]:
        """Return the streams that have suspects, the one first of which none was handed out for longest."""
        waiting = [stream for stream in streams if stream.has_suspects]
        return sorted(waiting, key=lambda stream: self._served.get(stream.address, 0))

    def was_handed_out(self, stream: Stream) -> None:
        """Take note that one of a stream's was."""
        self._served.pop(stream.address, None)
        self._served[stream.address] = 1 + next(reversed(self._served.values()), 0)

    def end(self) -> None:
        """There is no suspect to be handed out."""
        self._waits_since = self._began = None
        self._served.clear()
