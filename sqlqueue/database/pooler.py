"""Poolers before PostgreSQL, such as PgBouncer: whether connections lead through one, and what does not go with it.

In transaction mode each transaction may run in another session, and a session serves one client after another. Nothing
of the queue's outlives a transaction; some of Django's options do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlqueue.database.log import Log
from sqlqueue.database.replication_checks import ServerProblem

# With pool_mode = session they do no harm, and a client cannot see the mode.
UNLESS = "With pool_mode = session, silence this"


def is_pooled(log: Log) -> bool:
    """Tell whether this thread's connection leads through a pooler. It gives a client the number of no process, for the
    server's processes serve many. One statement on PostgreSQL."""
    connection: Any = log.connection
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT PG_BACKEND_PID()")
        (process,) = cursor.fetchone()
    return bool(process != connection.connection.info.backend_pid)


def findings(log: Log) -> Iterator[ServerProblem]:
    """Yield W044 for what a session would have to keep, if connections lead through a pooler."""
    config = log.connection.settings_dict
    options = config["OPTIONS"]
    problems: list[tuple[str, str]] = []
    if not config.get("DISABLE_SERVER_SIDE_CURSORS"):
        text = "DISABLE_SERVER_SIDE_CURSORS is off: QuerySet.iterator() outside a transaction finds its cursor no more"
        problems.append((text, f"Set DATABASES[{log.alias!r}]['DISABLE_SERVER_SIDE_CURSORS'] = True"))
    if options.get("prepare_threshold") is not None:
        text = f"OPTIONS['prepare_threshold'] is {options['prepare_threshold']}: another session lacks what is prepared"
        problems.append((text, "Leave it out, or set max_prepared_statements in PgBouncer 1.21 or later"))
    if options.get("assume_role"):
        text = f"OPTIONS['assume_role'] is {options['assume_role']!r}: other clients of a session have this role, too"
        problems.append((text, "Leave it out, and connect as that role"))
    if problems and is_pooled(log):
        for text, hint in problems:
            yield ServerProblem(44, False, f"connections lead through a pooler, and {text}", f"{hint}. {UNLESS}.")
