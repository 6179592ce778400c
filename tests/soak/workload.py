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
die, die-always  end the process with SIGKILL, at the first attempt or at every one
wait             ask for another attempt in WAIT seconds, at the first one
fail-long        fail at the first attempt, with an error that is long and not ASCII
reject-once      raise Reject, unless it is a dead letter that is delivered again
block            hold up the event loop, at the first attempt
"""

import random
from dataclasses import dataclass
from typing import Any

PHASES = "SOAK_PHASES"  # the environment's variable that names the phases of this run, with commas; see phases.py
SABOTAGE = "SOAK_SABOTAGE"  # the environment's variable that names one of these:
PLANTED = (
    "fencing",
    "horizon",
    "leases",
    "order",
    "progress",
    "settles",
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
        return options | ({"batch_size": 200} if self.batch else {})


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
# Those that phases need; they are served in runs with phases only.
LETTERS_OF = "doomed"
LETTERS = LETTERS_OF + "_dlq"
PHASE_READERS = [
    Reader("flood", "drain", batch=True),
    Reader("waiting", "desk"),
    Reader("heavy", "store"),
    Reader("doomed", "judge"),
    Reader(LETTERS, "undertaker", ordering="none"),
]
ALL_READERS = [*READERS, *PHASE_READERS]
# How long what a killed process owned may be served by nobody, even if nothing else is left to be done: until its
# leases end, and the others have looked, twice if two of them reached for the same.
UNSERVED = LEASE_DURATION + BALANCE_INTERVAL * 2
TOPICS = sorted({reader.topic for reader in READERS})
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
}


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


def partitions(topic: str) -> int:
    """Return how many partitions a topic has."""
    return 1 if topic == LETTERS else PHASE_TOPICS.get(topic, PARTITIONS)


def options(retention: float) -> dict[str, Any]:
    """Return the SQLQUEUE setting of all processes; retention: seconds that messages are kept."""
    topics = {topic: {"partitions": partitions(topic), "retention": retention} for topic in [*TOPICS, *PHASE_TOPICS]}
    topics["ledger"]["history"] = "all"
    # Late ones and others in one partition; for the checker to read.
    topics[LETTERS] = {"partitions": partitions(LETTERS), "retention": None}
    return {
        "CONSUMERS_MODULE": "handlers",
        "TOPICS": topics,
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
