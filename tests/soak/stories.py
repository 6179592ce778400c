"""Histories that tests make up: a few lines each. What is told of time is in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.soak.checker import Checker
from tests.soak.explanations import SLACK
from tests.soak.records import DeadLetter, Fault, Handling, Record, Transaction
from tests.soak.workload import ALL_READERS, FLUSH_INTERVAL, MAX_ATTEMPTS

PUBLISHER, ONE, OTHER, THIRD = 100, 1, 2, 3  # processes
# The readers of these topics are alone with them: brave (per key), book (per key, atomic), replay (per partition).
SIMPLE, ATOMIC, STRICT = "deadly", "ledger", "strict"
ATOMIC_GROUPS = {reader.group for reader in ALL_READERS if reader.atomic}
MINUTE = 60.0
SETTLE = FLUSH_INTERVAL + SLACK


class History:
    """A run in which process ONE has acquired all partitions 0 at the beginning."""

    def __init__(self) -> None:
        self.record = Record()
        self._offsets: dict[tuple[str, str], int] = {}
        for reader in ALL_READERS:
            self.acquire(ONE, 0.0, reader.topic, reader.group)

    def acquire(self, process: int, at: float, topic: str = SIMPLE, group: str = "", partition: int = 0) -> None:
        groups = [group] if group else groups_of(topic)
        self.record.acquired += [(at, process, topic, each, partition) for each in groups]

    def release(self, process: int, at: float, topic: str = SIMPLE, group: str = "", partition: int = 0) -> None:
        groups = [group] if group else groups_of(topic)
        self.record.released += [(at, process, topic, each, partition) for each in groups]

    def publish(
        self,
        *ids: str,
        topic: str = SIMPLE,
        key: str = "k",
        at: float = 1.0,
        told: float | None = 0.1,
        back: bool = False,
    ) -> None:
        """One transaction; told: how long after its beginning, None if it never was."""
        when = None if told is None else at + told
        self.record.transactions.append(Transaction(PUBLISHER, at, [(topic, key, id) for id in ids], when, back, when))

    def leave(self, *ids: str, topic: str = SIMPLE) -> None:
        """The run was not drained: the tables still have these to be delivered, for all groups of the topic."""
        self.record.drained = False
        self.record.pending |= {(topic, group, id) for group in groups_of(topic) for id in ids}

    def handle(
        self,
        id: str,
        at: float,
        outcome: str = "ok",
        *,
        topic: str = SIMPLE,
        group: str = "",
        seconds: float | None = 0.1,
        attempt: int = 1,
        by: int = ONE,
        offset: int = 0,
        confirmed: bool = True,
        partition: int = 0,
    ) -> None:
        """A handling for a group, or for all groups of the topic. seconds: None if it never ended; confirmed: that it
        was settled was announced; then an atomic handler's effect is there."""
        offset = offset or self._offsets.setdefault((topic, id), len(self._offsets) + 1)
        for each in [group] if group else groups_of(topic):
            ended = None if seconds is None else at + seconds
            said = "" if ended is None else outcome
            self.record.handlings.append(Handling(topic, each, partition, offset, id, attempt, by, at, ended, said))
            if ended is not None and confirmed:
                announced = {"ok": "acked", "reject": "dead", "postpone": "postponed"}.get(outcome, "retried")
                self.record.settled.append((ended + 0.05, by, topic, each, offset, attempt, announced))
                if outcome == "ok" and each in ATOMIC_GROUPS:
                    self.effect(id, each)

    def effect(self, id: str, group: str = "book") -> None:
        self.record.entries[group, id] = self.record.entries.get((group, id), 0) + 1

    def dead_letter(self, id: str, *, topic: str = SIMPLE, failures: int = MAX_ATTEMPTS) -> None:
        for group in groups_of(topic):
            self.record.dead.append(DeadLetter(topic, group, self._offsets.get((topic, id), 999), id, failures))

    def fault(self, kind: str, at: float, seconds: float = 0.0, to: int | None = None) -> None:
        victims = None if to is None else frozenset([to])
        self.record.faults.append(Fault(kind, at, at + seconds, victims))

    def check(self, one_writer: bool = False) -> Checker:
        self.record.handlings.sort(key=lambda handling: handling.began)
        return Checker(self.record, one_writer).check()


def groups_of(topic: str) -> list[str]:
    return [reader.group for reader in ALL_READERS if reader.topic == topic]


def found_in(history: History, one_writer: bool = False) -> dict[str, int]:
    return {kind: count for kind, count in history.check(one_writer).violations.items() if count}


class Stories:
    """What happens in histories of a kind, and what of it is to be found; each is a function that tells it."""

    def __init__(self, kind: type[History]) -> None:
        self._kind = kind
        self._told: list[tuple[Callable[[Any], None], set[str]]] = []

    def planted(self, *kinds: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        """A story of which these kinds of violations, and no others, are to be found."""

        def keep(story: Callable[[Any], None]) -> Callable[[Any], None]:
            self._told.append((story, set(kinds)))
            return story

        return keep

    def sound(self, story: Callable[[Any], None]) -> Callable[[Any], None]:
        """A story in which nothing is to be found, however near it comes."""
        return self.planted()(story)

    @property
    def kinds(self) -> set[str]:
        """All that has been planted."""
        return {kind for _, kinds in self._told for kind in kinds}

    def test(self) -> Callable[..., None]:
        """Return the test of all of them."""

        @pytest.mark.parametrize(("story", "kinds"), self._told, ids=[story.__name__ for story, _ in self._told])
        def test(story: Callable[[Any], None], kinds: set[str]) -> None:
            history = self._kind()
            story(history)
            assert set(found_in(history)) == kinds, history.check().problems

        return test
