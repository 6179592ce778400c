"""What a consumer process does before it begins: it waits for a database that answers and takes writes, and lets the
garbage collector look less often."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from django.db import Error, NotSupportedError

from sqlqueue.consumers.background.task import Trouble
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.write_probe import write_refused

logger = logging.getLogger("sqlqueue")

WAITS = "the process waits for the database, and starts once"


def let_sigterm_end_pid_1(status: int) -> None:
    """Let SIGTERM end this process, with this status, if it is the first one of a container: the system drops signals
    for which such a process has no handler. For the time in which it has begun nothing."""
    if os.getpid() == 1 and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(status))


def wait_for_database(log: Log, stopped: Callable[[float], bool | None] = time.sleep) -> bool:
    """Wait until a database answers and takes writes, and say so while it does not; return False if `stopped`, which
    waits for so many seconds, returns that the wait is over. Errors of connecting are the server's, whatever they are.
    Raises those of a version that is too old, of tables that are missing, and of what no retry helps against."""
    trouble = Trouble("start")
    while True:
        connected = False
        try:
            log.connection.ensure_connection()
            connected = True
            with log.connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            refused = write_refused(log)
            if refused is None:
                return True
            trouble.failed(refused)
            facts = {"alias": log.alias, "error": refused, "retry_in": trouble.pause}
            logger.warning(logfmt("database_takes_no_writes", **facts, meaning=f"{WAITS} it takes writes"))
        except Error as error:
            lasts = connected and retries.classify(error) in (*retries.FOR_GOOD, retries.ErrorKind.SCHEMA)
            if lasts or isinstance(error, NotSupportedError):
                raise
            trouble.failed(error)
            facts = {"alias": log.alias, "error": error, "retry_in": trouble.pause}
            logger.warning(logfmt("database_unreachable", **facts, meaning=f"{WAITS} it answers"))
        retries.drop_connection(log)  # another one may lead to a server that does
        if stopped(trouble.pause):
            return False


# Objects more than before, until the youngest are looked through; how long a string among them is does not count.
LOOK_EVERY = 10_000


def look_less_often() -> None:
    """Exempt from the garbage collector what is loaded by now, and let it look through the rest every 10,000 objects.
    For a process that does nothing else.

    A message in memory is some ten objects until it is settled. With Python's thresholds, and with all of Django's
    objects to walk through, the search for cycles among them is a third of what a batch handler that does nothing
    costs. A collector that is off, or looks even less often, stays as it is."""
    every, *others = gc.get_threshold()
    if not gc.isenabled() or not every:
        return
    gc.set_threshold(max(every, LOOK_EVERY), *others)
    gc.collect()  # what is exempt is never freed
    gc.freeze()
