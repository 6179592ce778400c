"""What a run does all the while: its topics, who reads them and how, and what messages ask of their handlers.

A message's payload is {"id": its id, "do": what the handler is to do}:

ok               return
slow             take 50 ms
fail, retry      raise any exception, or Retry, at the first attempt (fail-2: at the first two)
postpone         raise Postpone, half of the time
reject           raise Reject
exhaust          fail at every attempt
hang             run into the visibility timeout at the first attempt
extend           take longer than the visibility timeout, and say so
long             likewise, at the first attempt
die, die-always  end the process with SIGKILL, at the first attempt or at every one
wait             ask for another attempt in WAIT seconds, at the first one
later            likewise, in LATER seconds
fail-long        fail at the first attempt, with an error that is long and not ASCII
add              add a member to the batch of the message, in one of its groups
reject-once      raise Reject, unless it is a dead letter that is delivered again
block            hold up the event loop, at the first attempt
"""

import random
from dataclasses import dataclass
from typing import Any

PHASES = "SOAK_PHASES"  # the environment's variable that names the phases of this run, with commas; see phases.py
ONLY_TOPICS = "SOAK_TOPICS"  # the environment's variable that names the topics of this run, with commas; "": all
SABOTAGE = "SOAK_SABOTAGE"  # the environment's variable that names one of these:
PLANTED = (
    "changes",
    "ends",
    "fencing",
    "horizon",
    "jobs",
    "leases",
    "order",
    "places",
    "progress",
    "settles",
    "starving",
)  # faults of the engine's own; sabotage.py has them
LEASE_DURATION = 8.0
BALANCE_INTERVAL = 0.3
FLUSH_INTERVAL = 0.5
VISIBILITY_TIMEOUT = 4.0
TOO_LONG = VISIBILITY_TIMEOUT * 1.5
MAX_ATTEMPTS = 4
PARTITIONS = 6
THREADS = 4  # of each consumer process
WAIT = 15.0  # seconds
LATER = 8.0  # seconds: more than any machine may be late
BLOCKED = 45.0  # seconds for which a loop is held up: longer than its process may go unreplaced and unserved
HUNG_AFTER = 10.0
WINDOW = 10_000  # messages that are delivered beyond an open publishing transaction, in each partition
PACKET = 1024 * 1024  # bytes that a server takes at once, in runs with the phases "heavy" or "errors"
IDLE_TIMEOUT = 8  # seconds after which the server ends idle connections, in runs with the phase "idle"


@dataclass(frozen=True)
class Reader:
    """A consumer group of a topic, and what its handler promises."""

    topic: str
    group: str
    ordering: str = "key"
    batch: bool = False
    atomic: bool = False
    is_async: bool = False
    keeps_results: bool = False
    replies: bool = False
    where: dict[str, Any] | None = None  # wants() says of a payload what it means
    rate: float | None = None  # messages a second that all its processes together may begin
    concurrency: int | None = None  # handlers that may run in all of them at once

    @property
    def options(self) -> dict[str, Any]:
        """The options of its @consumer."""
        options: dict[str, Any] = {
            "group": self.group,
            "ordering": self.ordering,
            "batch": self.batch,
            "atomic": self.atomic,
            "max_attempts": MAX_ATTEMPTS,
            "visibility_timeout": VISIBILITY_TIMEOUT,
            "backoff": 0.1,
            "max_backoff": 1.0,
        }
        if self.batch:
            options["batch_size"] = 200
        if self.keeps_results:
            options["keep_results"] = KEPT_RESULTS
        if self.where is not None:
            options["where"] = self.where
        if self.rate is not None:
            options["rate_limit"] = f"{self.rate:g}/s"
        if self.concurrency is not None:
            options["concurrency_limit"] = self.concurrency
        return options

    def wants(self, payload: Any) -> bool:
        """Tell whether a message is for this group, by its payload and without the engine's filters."""
        return self.where is None or (payload["for"] in FOR_DEPUTY and payload["value"] >= LEAST_VALUE)


READERS = [
    Reader("orders", "ship"),
    Reader("orders", "audit", ordering="none"),
    Reader("orders", "notify", is_async=True),
    Reader("ledger", "book", atomic=True),
    Reader("strict", "replay", ordering="partition"),
    Reader("bulk", "load", batch=True),
    Reader("bulk", "tally", batch=True, atomic=True),
    Reader("deadly", "brave"),
]
# Everyday jobs, in every run: jobs.py publishes them but for the ticks. Their logs are kept, for the checker to read.
MINUTE = 60.0
ADDED = "+"  # ends the id of a member of a batch that another one has added
TICKS, NAMED, FLEETING, MEMBERS, CALLED = "periodic", "named", "fleeting", "members", "called"
REQUESTS, CROWDED = "requests", "crowded"
FOR_DEPUTY, LEAST_VALUE = ("deputy", "both"), 50  # what the filter of REQUESTS' second group lets pass
JOB_READERS = [
    Reader(TICKS, "clock", ordering="none"),
    Reader(NAMED, "herald", keeps_results=True),
    Reader(FLEETING, "catch", ordering="none"),
    Reader(MEMBERS, "crew"),
    Reader(MEMBERS, "gang", ordering="none", atomic=True),
    Reader(CALLED, "caller"),
    Reader(REQUESTS, "clerk", replies=True),
    Reader(
        REQUESTS,
        "deputy",
        ordering="none",
        replies=True,
        where={"headers.for": list(FOR_DEPUTY), "payload.value__gte": LEAST_VALUE},
    ),
    Reader(CROWDED, "limited", ordering="none", rate=8.0, concurrency=2),
]
# And their partitions.
JOB_TOPICS = {TICKS: 1, NAMED: 1, FLEETING: 1, MEMBERS: 3, CALLED: 1, REQUESTS: 2, CROWDED: 2}


@dataclass(frozen=True)
class Schedule:
    """A periodic schedule: seconds from one tick to the next, and what becomes of missed ones."""

    every: float
    missed: str


DECORATED = "each"  # that of @periodic; the others are in the settings
SCHEDULES = {
    DECORATED: Schedule(1.0, "all"),
    "latest": Schedule(1.0, "last"),
    "fresh": Schedule(2.0, "skip"),
    "minutes": Schedule(MINUTE, "all"),  # by a cron expression
}
# Those of Django's Tasks: their handler is the engine's own.
QUEUE = "soak"
TASKS = Reader(f"tasks.{QUEUE}", "tasks", ordering="none")
TASK_PARTITIONS = 1  # of ten priorities each
# The kinds (tasks.py has them): how often each is enqueued among a hundred, and how many errors it has once it ended,
# whatever was done to its workers. Only "fail" ends as FAILED.
TASK_WEIGHTS = {"add": 80, "fail": 8, "flaky": 11, "deadly": 1}
TASK_ERRORS = {"add": 0, "fail": 1, "flaky": 1, "deadly": 0}
# One with long handlers, and those that must not wait for it. Processes of their own serve them, and nothing else.
LABOR, BRIEF = "labor", "brief"
APART_READERS = [
    Reader(LABOR, "grind", ordering="none"),
    Reader(BRIEF, "sprint", ordering="none"),
    Reader(BRIEF, "dash", ordering="none"),
]
APART_TOPICS = {LABOR: 2, BRIEF: 2}
KEPT_RESULTS = 3600.0  # seconds: longer than any run
# Those that phases need; they are served in runs with phases only.
DEAD_LETTERS_OF = "doomed"
DEAD_LETTERS = DEAD_LETTERS_OF + "_dlq"
PHASE_READERS = [
    Reader("flood", "drain", batch=True),
    Reader("waiting", "desk"),
    Reader("heavy", "store"),
    Reader("doomed", "judge"),
    Reader(DEAD_LETTERS, "undertaker", ordering="none"),
]
ALL_READERS = [*READERS, *JOB_READERS, *APART_READERS, *PHASE_READERS]
# How long what a killed process owned may be served by no process, even if nothing else is left to be done: until its
# leases end, and the others have looked, twice if two of them reached for the same.
UNSERVED = LEASE_DURATION + BALANCE_INTERVAL * 2
TOPICS = sorted({reader.topic for reader in READERS})
# Whose numbers of partitions are changed: how often each is, beside the others.
ALTERED = {"bulk": 3, CROWDED: 2, "deadly": 1, "ledger": 3, "orders": 4, "strict": 3}
# Few partitions, so that their windows fill.
PHASE_TOPICS = {"flood": 2, "waiting": 1, "heavy": PARTITIONS, "doomed": 2}
ORDINARY = {"slow": 2, "fail": 3, "fail-2": 1, "retry": 1, "postpone": 2, "reject": 0.3, "exhaust": 0.2, "extend": 0.1}
# What a message of each topic asks for, by its weight among a hundred; the rest is ok.
ASKED: dict[str, dict[str, float]] = {
    "orders": ORDINARY | {"hang": 0.1},
    "ledger": ORDINARY | {"hang": 0.1},
    "strict": {"slow": 2, "fail": 1, "retry": 1, "postpone": 1, "reject": 0.3},
    # One of them makes its whole batch come again one by one: more would be nothing but that.
    "bulk": {"fail": 0.01, "reject": 0.003},
    "deadly": {"die": 12, "die-always": 2},
    NAMED: {"slow": 5, "fail": 5, "retry": 2, "postpone": 3},
    MEMBERS: {"slow": 5, "fail": 8, "retry": 4, "postpone": 4, "reject": 2, "add": 15, "exhaust": 0.5},
    FLEETING: {"slow": 10, "fail": 15, "fail-2": 5, "retry": 10, "postpone": 10, "reject": 1},
    REQUESTS: {"slow": 10, "fail": 15, "retry": 5, "postpone": 5, "reject": 10, "die": 1},
}
TICK_FAILS = 10  # every so many seconds the ticks of that second ask for a failure


# Whose handlers hold a transaction open. Where there is one writer (SQLite), no other may write meanwhile, so that none
# of them takes longer than an ordinary application's.
LENGTHY = {"hang", "extend"}


def asks(topic: str, dice: random.Random, one_writer: bool) -> str:
    """Choose what a message asks of its handlers."""
    point = dice.random() * 100
    for what, weight in ASKED[topic].items():
        point -= weight
        if point < 0:
            atomic = any(reader.atomic for reader in READERS if reader.topic == topic)
            return "ok" if one_writer and atomic and what in LENGTHY else what
    return "ok"


def asked_by(payload: Any) -> str:
    """Return what a message asks of its handlers. A tick says when it was due."""
    if "do" in payload:
        return payload["do"]
    return "fail" if int(payload["tick"][17:19]) % TICK_FAILS == 0 else "ok"


def partitions(topic: str) -> int:
    """Return how many partitions a topic has at first."""
    return 1 if topic == DEAD_LETTERS else (PHASE_TOPICS | JOB_TOPICS | APART_TOPICS).get(topic, PARTITIONS)


def configured_schedules() -> dict[str, dict[str, Any]]:
    """Return the setting SCHEDULES: all but that of @periodic."""
    found: dict[str, dict[str, Any]] = {}
    for name, schedule in SCHEDULES.items():
        if name != DECORATED:
            when = {"cron": "* * * * *"} if schedule.every == MINUTE else {"every": schedule.every}
            found[name] = {**when, "missed": schedule.missed, "topic": TICKS, "group": JOB_READERS[0].group}
    return found


def options(retention: float) -> dict[str, Any]:
    """Return the SQLQUEUE setting of all processes; retention: seconds that messages are kept."""
    names = [*TOPICS, *APART_TOPICS, *PHASE_TOPICS]
    topics: dict[str, dict[str, Any]] = {
        topic: {"partitions": partitions(topic), "retention": retention} for topic in names
    }
    topics["ledger"]["history"] = "all"
    topics |= {topic: {"partitions": count, "retention": None} for topic, count in JOB_TOPICS.items()}
    topics[TASKS.topic] = {"partitions": TASK_PARTITIONS, "retention": retention}
    # Late ones and others in one partition; for the checker to read.
    topics[DEAD_LETTERS] = {"partitions": partitions(DEAD_LETTERS), "retention": None}
    return {
        "CONSUMERS_MODULE": "handlers",
        "TOPICS": topics,
        "SCHEDULES": configured_schedules(),
        "RETENTION": None,  # dead letters stay, for the checker to read
        "RECEIPT_RETENTION": retention,
        "LEASE_DURATION": LEASE_DURATION,
        "HEARTBEAT_INTERVAL": 2,
        "BALANCE_INTERVAL": BALANCE_INTERVAL,
        "FLUSH_INTERVAL": FLUSH_INTERVAL,
        "COLLECT_INTERVAL": 2,
        "SHUTDOWN_TIMEOUT": 10,
        "HUNG_AFTER": HUNG_AFTER,
    }
