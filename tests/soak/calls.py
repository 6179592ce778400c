"""Whether each call ended as it had to: in time, with the reply of the attempt that was acked first, or as a dead
letter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.soak.explanations import Explanations
from tests.soak.job_records import Ask, LogEntry
from tests.soak.records import Handling, Record
from tests.soak.workload import JOB_READERS, REQUESTS

WAITED = 6.0  # seconds beyond its timeout, and beyond faults, that a caller may wait on a machine of its own
SEEN = 3.0  # seconds after which a reply that was stored has arrived
AFTERMATH = 8.0  # seconds after a fault in which a caller may still find no database
TOO_EARLY = 0.05  # seconds by which a timeout may be short of what was asked for
GROUPS = [reader.group for reader in JOB_READERS if reader.topic == REQUESTS]


class CallChecks:
    """The checks of one run's calls."""

    def __init__(self, record: Record, explanations: Explanations) -> None:
        self.record, self.explanations = record, explanations
        self._entries = {entry.payload["id"]: entry for entry in record.jobs.log if entry.topic == REQUESTS}
        self._handled: dict[tuple[str, str], list[Handling]] = defaultdict(list)
        for handling in record.handlings:
            if handling.topic == REQUESTS:
                self._handled[handling.group, handling.id].append(handling)
        self._dead = {(each.group, each.id) for each in record.dead if each.topic == REQUESTS}
        self._acked: dict[tuple[str, int], tuple[float, int]] = {}  # when that was confirmed, and of which attempt
        for at, _, topic, group, offset, attempt, outcome in record.settled:
            if topic == REQUESTS and outcome == "acked":
                self._acked.setdefault((group, offset), (at, attempt))

    def wrong(self) -> Iterator[str]:
        """Yield what is wrong."""
        for ask in self.record.jobs.asks:
            if ask.ended is None:
                if ask.caller in self.record.left:
                    yield f"{ask} never returned"
                continue
            late = ask.ended - ask.began - ask.timeout - WAITED * self.record.crowded
            if late > self._held_up(ask):
                yield f"{ask} returned {late:.1f} s too late"
            yield from getattr(self, f"_{ask.what}")(ask, self._entries.get(ask.id))
        for sockets in self.record.jobs.sockets:
            if sockets:
                yield f"{sockets} sockets of callers were left open"

    # -- each end of a call -------------------------------------------------------------------------------------------

    def _reply(self, ask: Ask, entry: LogEntry | None) -> Iterator[str]:
        reply = ask.value
        if not isinstance(reply, dict) or entry is None or reply["id"] != ask.id:
            yield f"{ask} is no reply to that"
            return
        group, attempt = reply["group"], reply["attempt"]
        mine = (each for each in self._handled[group, entry.id] if each.attempt == attempt)
        own = next((each for each in mine if each.succeeded), None)
        if own is None or self._acked.get((group, entry.offset), (0.0, attempt))[1] != attempt:
            yield f"{ask} is the reply of an attempt that was not acked"
            return
        for other in GROUPS:
            at, of = self._acked.get((other, entry.offset), (own.began, 0))
            if other != group and at < own.began and self._replied(other, entry, of):
                yield f"{ask}, and {other} had replied {own.began - at:.3f} s before that handler began"

    def _failed(self, ask: Ask, entry: LogEntry | None) -> Iterator[str]:
        if entry is None or (ask.value, entry.id) not in self._dead:
            yield f"{ask}, and that is no dead letter"
        else:
            yield from self._missed(ask, entry)

    def _timeout(self, ask: Ask, entry: LogEntry | None) -> Iterator[str]:
        assert ask.ended is not None
        if ask.ended - ask.began < ask.timeout - TOO_EARLY:
            yield f"{ask} came too early"
        if entry is not None:
            yield from self._missed(ask, entry)

    def _error(self, ask: Ask, entry: LogEntry | None) -> Iterator[str]:
        assert ask.ended is not None
        if not self.explanations.upon(ask.caller, ask.began - AFTERMATH, ask.ended):
            yield f"{ask}, and no fault tells why"

    # -- what they ask for --------------------------------------------------------------------------------------------

    def _missed(self, ask: Ask, entry: LogEntry) -> Iterator[str]:
        """Yield a reply that was stored in time, with no fault since that could have kept the caller from seeing it."""
        assert ask.ended is not None
        for group in GROUPS:
            at, attempt = self._acked.get((group, entry.offset), (ask.ended, 0))
            seen = at + SEEN * self.record.crowded < ask.ended and self._replied(group, entry, attempt)
            if seen and not self.explanations.upon(ask.caller, at - AFTERMATH, ask.ended):
                yield f"{ask}, and {group} had replied {ask.ended - at:.3f} s before"

    def _replied(self, group: str, entry: LogEntry, attempt: int) -> bool:
        """Tell whether a group's ack came from its handler: what a filter leaves out has no reply."""
        return any(each.attempt == attempt and each.succeeded for each in self._handled[group, entry.id])

    def _held_up(self, ask: Ask) -> float:
        """Return for how long faults may have held up a caller."""
        assert ask.ended is not None
        faults = self.explanations.upon(ask.caller, ask.began - AFTERMATH, ask.ended)
        return sum(fault.ended - fault.began + AFTERMATH for fault in faults)


def figures(record: Record) -> dict[str, object]:
    """Return how much was checked."""
    return {"calls": dict(sorted(Counter(ask.what or "cut short" for ask in record.jobs.asks).items()))}
