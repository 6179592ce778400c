"""What a server is asked to do: its statements by kind, as MariaDB's performance schema counts them."""

import re
import time
from collections import defaultdict
from typing import NamedTuple

from django.db import connection

# The kinds of statements by what their text matches, the first that does. `watch` are those of the benchmark itself.
KINDS = [
    ("watch", r"watched|performance_schema|^(SHOW|TRUNCATE)"),
    ("survey of the positions", r"`slot`.*sqlqueue_partition_lease"),
    ("heartbeat", r"^INSERT INTO `sqlqueue_subscriber_heartbeat"),
    ("renew the leases", r"^UPDATE `sqlqueue_partition_lease`( FORCE INDEX \( PRIMARY \))? SET `valid_until"),
    ("ids of the held leases", r"^SELECT `id` FROM `sqlqueue_partition_lease` WHERE `holder`"),
    (
        "tokens of the held leases",
        r"^SELECT `consumer_group` .*`fencing_token` FROM `sqlqueue_partition_lease` WHERE `holder",
    ),
    ("options of the groups", r"`history`.*sqlqueue_subscriber_heartbeat"),
    ("living subscribers", r"^SELECT .*`(serves|partitions)`.*FROM `sqlqueue_subscriber_heartbeat"),
    ("leases to take", r"^SELECT .*`fencing_token`.*`holder` FROM .*`sqlqueue_partition_lease"),
    ("shorten stale leases", r"`sqlqueue_partition_lease`.* NOT EXISTS"),
    ("take leases", r"^SELECT `id` FROM `sqlqueue_partition_lease"),
    ("hold leases", r"^UPDATE `sqlqueue_partition_lease.*`fencing_token` = "),
    ("give up leases", r"^UPDATE `sqlqueue_partition_lease"),
    ("offsets of taken leases", r"sqlqueue_partition_lease"),
    ("other heartbeats", r"sqlqueue_subscriber_heartbeat"),
    ("probe the horizon", r"sqlqueue_publish_gate"),
    ("poll the log", r"sqlqueue_message"),
    ("offsets", r"sqlqueue_offset"),
    ("begin and commit", r"^(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|START)"),
    ("sessions", r"^(SET|SELECT @@|SELECT VERSION|SELECT CASE)"),
]
BALANCING = {
    "heartbeat",
    "renew the leases",
    "ids of the held leases",
    "tokens of the held leases",
    "options of the groups",
    "who shares the groups",
    "leases to take",
    "take leases",
    "hold leases",
    "give up leases",
    "offsets of taken leases",
    "shorten stale leases",
    "other heartbeats",
}
DIGESTS = """
    SELECT DIGEST_TEXT, COUNT_STAR, SUM_ROWS_EXAMINED, SUM_ROWS_AFFECTED, SUM_TIMER_WAIT / 1e9, MAX_TIMER_WAIT / 1e9
    FROM performance_schema.events_statements_summary_by_digest WHERE SCHEMA_NAME = DATABASE()
"""


class Load(NamedTuple):
    """Statements of a kind: how many, rows examined and changed by all of them, milliseconds of all and of the
    slowest."""

    count: int
    examined: int
    changed: int
    time: float
    slowest: float
    text: str


class Measured(NamedTuple):
    """What happened in some seconds: statements by kind; lock waits, and their milliseconds; deadlocks."""

    seconds: float
    loads: dict[str, Load]
    lock_waits: int
    waited: int
    deadlocks: int

    def slowest(self) -> tuple[str, Load]:
        """Return the balancing statement that took longest."""
        some = [(kind, load) for kind, load in self.loads.items() if kind in BALANCING]
        return max(some, key=lambda one: one[1].slowest)


class Meter:
    """Counts from its beginning, or the last reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE performance_schema.events_statements_summary_by_digest")
        self._began, self._before = time.monotonic(), _status()

    def read(self) -> Measured:
        """Return what was counted."""
        seconds, now = time.monotonic() - self._began, _status()
        with connection.cursor() as cursor:
            cursor.execute(DIGESTS)
            rows = cursor.fetchall()
        found: dict[str, Load] = {}
        for text, count, examined, changed, total, slowest in rows:
            kind = kind_of(text or "")
            if kind == "watch":
                continue
            old = found.get(kind, Load(0, 0, 0, 0.0, 0.0, ""))
            slow = float(slowest) >= old.slowest
            found[kind] = Load(
                old.count + int(count),
                old.examined + int(examined),
                old.changed + int(changed),
                old.time + float(total),
                float(slowest) if slow else old.slowest,
                text if slow else old.text,
            )
        difference = {name: now[name] - self._before[name] for name in now}
        return Measured(
            seconds,
            found,
            difference["Innodb_row_lock_waits"],
            difference["Innodb_row_lock_time"],
            difference["Innodb_deadlocks"],
        )


def kind_of(text: str) -> str:
    """Return the kind of a statement, by its digest."""
    plain = " ".join(text.split())
    return next((kind for kind, pattern in KINDS if re.search(pattern, plain)), "others")


def _status() -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb%'")
        found: dict[str, int] = defaultdict(int)
        for name, value in cursor.fetchall():
            if name in ("Innodb_row_lock_waits", "Innodb_row_lock_time", "Innodb_deadlocks"):
                found[name] = int(value)
    return {name: found[name] for name in ("Innodb_row_lock_waits", "Innodb_row_lock_time", "Innodb_deadlocks")}
