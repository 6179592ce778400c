"""A look at the server that a connection leads to: what tells it, and each of its starts, from every other one.

sqlqueue.database.server_identity says what it is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlqueue.database.insert_sql import HERE, NAMED

# Neither a server's name nor its identifier changes when it is started again, and no expression gives its start, except
# this one, in all but its last 24 bits: a counter. Once it has counted to 16 million the start seems to be a second
# later: a change that is none, and costs no more than one.
START = "UUID_SHORT() >> 24"
# A variable of the session: another one, to which a proxy leads the connection, does not have it. The server makes the
# value: a proxy that repeats the statement in another session sets another one.
SET_SESSION = "SET @sqlqueue_session = UUID()"
AGE = f"UNIX_TIMESTAMP() - CAST(({START}) & 4294967295 AS SIGNED)"  # seconds
# In a cluster of several writable servers, which one is named, see database.writer. Index: the primary key.
WHICH_NAMED = f"(SELECT writer FROM sqlqueue_publish_gate WHERE slot = {NAMED})"
LOOK_MYSQL = f"""
    SELECT {AGE}, {WHICH_NAMED}, {HERE}, @sqlqueue_session, 'server_uuid', @@server_uuid, {START}, @@hostname, @@port,
    @@datadir
"""
# MariaDB has the identifier from some release of each series on.
LOOK_MARIADB = f"""
    SELECT {AGE}, {WHICH_NAMED}, {HERE}, @sqlqueue_session,
    (SELECT LOWER(VARIABLE_NAME) FROM INFORMATION_SCHEMA.GLOBAL_VARIABLES WHERE VARIABLE_NAME = 'server_uid'),
    (SELECT VARIABLE_VALUE FROM INFORMATION_SCHEMA.GLOBAL_VARIABLES WHERE VARIABLE_NAME = 'server_uid'),
    {START}, @@hostname, @@port, @@datadir, @@server_id
"""
# Only a primary has a timeline of its own; pg_control_checkpoint() shows the old one for a while after a promotion. The
# statistics begin anew when the server has recovered from the crash of one of its processes, without a new start.
POSTGRESQL = """
    CONCAT(EXTRACT(EPOCH FROM PG_POSTMASTER_START_TIME()), ' ', {crash}CASE WHEN PG_IS_IN_RECOVERY() THEN 'standby'
    ELSE {timeline} END)
"""
TIMELINE = "SUBSTR(PG_WALFILE_NAME(PG_CURRENT_WAL_INSERT_LSN()), 1, 8)"
# Where these functions may not be called (SQLSTATEs: they are withdrawn, or not supported), starts alone are compared:
# a standby has one of its own, so a promotion shows, but not what else begins a timeline without a start.
NOT_TO_BE_CALLED = ("42501", "0A000")
NO_TIMELINE = "'primary'"
CRASH = "EXTRACT(EPOCH FROM PG_STAT_GET_BGWRITER_STAT_RESET_TIME()), ' ', "
CHEAP_STATISTICS = 150_000  # PostgreSQL 14 reads a file for them

YOUNG = 20  # tenths of a second for which a server is looked at that has just been started

Run = Callable[[str], Any]  # a statement; returns the driver's cursor


class Session(NamedTuple):
    """A connection's session. text: SQL that holds in no other one, "" where there is no server; values: its
    parameters; shared: it holds in all sessions of the server, and on no other server. writer: the server that the gate
    names, "" for none; here: this one, by the same name."""

    identity: str
    text: str = ""
    values: tuple[object, ...] = ()
    shared: bool = True
    writer: str = ""
    here: str = ""


def session_of_mysql(run: Run, is_mariadb: bool) -> Session:
    """Return a connection's session on MySQL or MariaDB."""
    run(SET_SESSION)
    text = LOOK_MARIADB if is_mariadb else LOOK_MYSQL
    for _ in range(YOUNG):
        age, writer, here, mark, variable, server, *rest = run(text).fetchone()
        if age:  # its next start will be in another second than this one; below 0: its clock was set back
            break
        time.sleep(0.1)
    if variable is None:
        variable, server = "server_id", rest[-1]
    identity = " ".join(map(str, (server, *rest)))
    proof = f"@sqlqueue_session = %s AND @@{variable} = %s"
    return Session(identity, proof, (mark, server), shared=False, writer=writer or "", here=here)


def session_of_postgresql(run: Run, version: int, may_fail: bool) -> Session:
    """Return a connection's session on PostgreSQL; version: such as 150004; may_fail: the connection is of use after a
    statement that has failed."""
    text = POSTGRESQL.strip().replace("{crash}", CRASH if version >= CHEAP_STATISTICS else "")
    expression = text.replace("{timeline}", TIMELINE)
    try:
        (identity,) = run(f"SELECT {expression}").fetchone()
    except Exception as error:
        state = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", "")
        if state not in NOT_TO_BE_CALLED or not may_fail:
            raise
        expression = text.replace("{timeline}", NO_TIMELINE)
        (identity,) = run(f"SELECT {expression}").fetchone()
    return Session(identity, f"{expression} = %s", (identity,))
