"""Histories of everyday jobs that tests make up: a few lines each. What is told of time is in seconds."""

from __future__ import annotations

from datetime import datetime, timezone

from tests.soak.job_checks import EXPIRED, WANTED
from tests.soak.job_records import BatchEnd, Enqueued, KeptResult, LogEntry, Offer, TaskEnd
from tests.soak.records import DeadLetter
from tests.soak.stories import History
from tests.soak.workload import ADDED, CALLED, FLEETING, JOB_READERS, MEMBERS, NAMED, SCHEDULES, TICKS

AHEAD = 1_000_000.0  # by which the database's clock is ahead of the history's
CLOCK = JOB_READERS[0].group
TICKED = 30  # seconds for which schedules ticked
NAME = "jobs1/7/0"


class JobHistory(History):
    """A run whose everyday jobs are told of, too."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = self.record.jobs
        self.jobs.clock = AHEAD

    def log(
        self, topic: str, id: str, at: float, payload: object, group: str = "", expires: float | None = None
    ) -> None:
        """A message that entered the log at a moment, and was handled by its groups right then."""
        when = None if expires is None else expires + AHEAD
        self.jobs.log.append(LogEntry(topic, "k", id, len(self.jobs.log) + 1, payload, group, at + AHEAD, when))

    def tick(self, name: str, number: int, *, late: float = 0.1, handled: bool = True, **wrong: object) -> None:
        """The tick that is due after so many intervals."""
        due = number * SCHEDULES[name].every
        text = datetime.fromtimestamp(due + AHEAD, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.log(TICKS, f"{name}@{text}", due + late, {"schedule": name, "tick": text, **wrong}, group=CLOCK)
        if handled:
            self.handle(f"{name}@{text}", due + late + 0.1, topic=TICKS)

    def ticks(self, *left_out: tuple[str, int]) -> None:
        """All ticks of the schedules that are due within TICKED seconds, but for these."""
        for name, reader in SCHEDULES.items():
            if reader.every < TICKED:
                for number in range(1, int(TICKED / reader.every) + 1):
                    if (name, number) not in left_out:
                        self.tick(name, number)
            self.jobs.ticks_until[name] = (TICKED + 0.5 + AHEAD, TICKED + 0.6 + AHEAD)

    def act(
        self,
        what: str,
        at: float,
        told: str | bool | None,
        *,
        lasts: float = 0.1,
        delay: float = 2.0,
        back: bool = False,
    ) -> int:
        """Something done with the name; return the value that it offers."""
        offer = Offer(NAME, len(self.jobs.offers) + 1, what, delay, at, told, back)
        if told is not None or back:
            offer.ended = at + lasts
        self.jobs.offers.append(offer)
        return offer.number

    def comes(self, value: int, at: float = 10.0) -> None:
        """The name enters the log with a value, is handled, and its result is kept."""
        self.log(NAMED, NAME, at, {"value": value, "do": "ok"})
        self.handle(NAME, at, topic=NAMED)
        self.jobs.values[NAME].add(value)
        self.jobs.results.append(KeptResult(NAMED, "herald", NAME, "acked", {"value": value}))

    def task(self, kind: str, status: str, value: object, errors: int, *, dead: int = 0, told: bool = True) -> None:
        self.jobs.enqueued.append(Enqueued("t", kind, 5, told, back=not told))
        self.jobs.ends["t"] = TaskEnd(status, value, [WANTED] * errors)
        self.jobs.dead_tasks += ["t"] * dead

    def fleeting(self, expires: float, at: float = 20.0) -> None:
        self.publish("m", topic=FLEETING, at=at)
        self.log(FLEETING, "m", at, {"id": "m", "do": "ok"}, expires=expires)

    def expired(self, at: float) -> None:
        self.record.dead.append(DeadLetter(FLEETING, "catch", 1, "m", 0, EXPIRED, at + AHEAD))

    def batch(
        self,
        state: str = "finished",
        *calls: str,
        told: bool | None = True,
        acked: int = 6,
        dead: int = 0,
        at: float = 10,
    ) -> None:
        """A batch of three members, one added by another, that were settled one after the other; its callbacks."""
        self.jobs.batches["b"] = told
        self.jobs.batch_ends["b"] = BatchEnd(state, 3, acked, dead)
        self.publish("b/0", "b/1", topic=MEMBERS)
        for number, id in enumerate(["b/0", "b/1", "b/1" + ADDED]):
            self.log(MEMBERS, id, 1, {"id": id, "do": "ok", "batch": "b"})
            if not (dead and number == 0):
                self.handle(id, 2.0 + number, topic=MEMBERS)
        for when in calls or ("finish", "success"):
            if when != "none":
                self.log(CALLED, f"batch:1:{when}", at, {"batch": "b", "when": when})
        for when in {*(calls or ("finish", "success"))} - {"none"}:
            self.handle(f"batch:1:{when}", at, topic=CALLED)

    def failed_member(self, state: str, *calls: str, acked: int = 4, dead: int = 2) -> None:
        """The first member becomes a dead letter for both groups, which reject it."""
        self.batch(state, *calls, acked=acked, dead=dead)
        self.handle("b/0", 2.0, "reject", topic=MEMBERS)
        for group in ("crew", "gang"):
            self.record.dead.append(DeadLetter(MEMBERS, group, self._offsets[MEMBERS, "b/0"], "b/0", 1, "", 3 + AHEAD))
