"""Suspects, which a former owner had in hand when it ended, are handed out alone: nothing else is in hand in the whole
process meanwhile, so that the one that ends processes is found. There may be hundreds of them. So they take turns with
everything else, which is never kept waiting for much longer than a turn lasts; and their streams take turns, too.

A suspect waits until nothing is in hand. What outlasts a turn of that waiting is long work: the others go on, turn by
turn, and the groups with long work get nothing new until there is no suspect any more. So a suspect waits no longer
than the longest handler that runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlqueue.core.stream import Address, Stream

TURN: Final = 1.0  # seconds of one suspect after another; then everything else has its turn, for as long


class SuspectTurns:
    """Whose turn it is. Times are monotonic; a place is a subscription's (group, topic)."""

    def __init__(self) -> None:
        self._waits_since: float | None = None  # from when on nothing else was handed out
        self._began: float | None = None  # when the first suspect of this turn was handed out
        self._others_until = 0.0
        self._served: dict[Address, int] = {}  # by stream: which of all hand-outs was its last
        self._long: set[tuple[str, str]] = set()  # the places whose handlers have outlasted a wait

    def of_others(self, now: float) -> bool:
        """It is the turn of everything else."""
        return now < self._others_until

    def waits_for(self, place: tuple[str, str]) -> bool:
        """Suspects wait for what is in hand of this place, which gets nothing new meanwhile."""
        return place in self._long

    def wait(self, now: float, in_hand: Iterable[tuple[str, str]] = ()) -> bool:
        """A suspect waits until nothing else is in hand; nothing else is handed out meanwhile. False once that has
        lasted for a turn: then the turn of everything else has begun, but for what is still in hand."""
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since < TURN:
            return True
        self._long.update(in_hand)
        self._yield_to_others(now)
        return False

    def go_on(self, now: float) -> bool:
        """Tell whether a suspect may be handed out now. If not, the turn of everything else has begun: it lasts as long
        as this one did, with the time for which that was waited for."""
        if self._waits_since is None:
            self._waits_since = now
        if self._began is None:
            self._began = now
        if now - self._began < TURN:
            return True
        self._yield_to_others(now)
        return False

    def _yield_to_others(self, now: float) -> None:
        assert self._waits_since is not None
        self._others_until = now + (now - self._waits_since)
        self._waits_since = self._began = None

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
        self._long.clear()
