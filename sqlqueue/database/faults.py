"""The rerunning of a whole verb, as its fault allows."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import Error, connections, transaction

from sqlqueue.core.lines import line
from sqlqueue.database.dialects import dialect
from sqlqueue.database.fault_numbers import Fault, classify
from sqlqueue.database.patience import limit_transaction
from sqlqueue.database.transactions import fresh_reads
from sqlqueue.signals import announce, verb_failed

T = TypeVar("T")
logger = logging.getLogger("sqlqueue")

RERUNS = 10

__all__ = ["RERUNS", "Fault", "classify", "close_lost_connections", "drop_connection", "patiently"]
__all__ += ["run", "run_once", "run_statement"]


def run(alias: str, verb: Callable[..., T], *args: Any, **options: Any) -> T:
    """Run a verb in one transaction; on contention run all of it again.

    Inside somebody else's `atomic` it is run once: only its owner can roll back and run again. A connection that is
    gone is the caller's to mend: what to do then depends on the verb.
    """

    return _again(alias, verb.__name__, lambda: run_once(alias, verb, *args, **options))


def run_once(alias: str, verb: Callable[..., T], *args: Any, **options: Any) -> T:
    """The same, but contention is the caller's to mend, too."""
    with dialect(alias).writers, fresh_reads(alias), transaction.atomic(using=alias):
        limit_transaction(alias)
        return verb(*args, **options)


def run_statement(alias: str, verb: Callable[..., T], *args: Any, **options: Any) -> T:
    """The same for a verb that is a single statement: it needs no transaction around it, and saves two round trips."""
    return _again(alias, verb.__name__, lambda: verb(*args, **options))


def _again(alias: str, name: str, once: Callable[[], T]) -> T:
    alone = not connections[alias].in_atomic_block
    for attempt in range(1, RERUNS + 1):
        try:
            return once()
        except Error as error:
            if not alone or attempt == RERUNS or classify(error) is not Fault.CONTENTION:
                raise
            logger.info(line("verb_rerun", verb=name, attempt=attempt, error=error))
            announce(verb_failed, run, verb=name, fault=Fault.CONTENTION.name, error=error)
            time.sleep(random.uniform(0.001, 0.01) * attempt)
    raise AssertionError("unreachable")


def patiently(alias: str, verb: Callable[..., T], *args: Any, give_up: Callable[[], bool], **options: Any) -> T | None:
    """Call a verb until it succeeds, through lost connections too (so it must be one that may be run twice); None if
    `give_up` says so between two tries. It runs as it is, in transactions of its own if it needs any."""
    wait = 0.05
    while True:
        try:
            return verb(*args, **options)
        except Error as error:
            fault = classify(error)
            if fault not in (Fault.GONE, Fault.CONTENTION):
                raise
            facts = {"verb": verb.__name__, "fault": fault.name, "error": error}
            logger.warning(line("verb_held_up", **facts, retry_in=wait))
            announce(verb_failed, patiently, **facts)
            if fault is Fault.GONE:
                drop_connection(alias)
            if give_up():
                return None
            time.sleep(wait)
            wait = min(wait * 2, 2.0)


def close_lost_connections() -> bool:
    """Close this thread's connections that the server has ended while they were idle, and no others; return whether
    there were any. The next query opens a new one. For a thread that has rested, before it goes on."""
    idle = (one for one in connections.all(initialized_only=True) if one.connection is not None)
    lost = [one for one in idle if not one.in_atomic_block and not one.is_usable()]
    for connection in lost:
        connection.close()
    return bool(lost)


def drop_connection(alias: str) -> None:
    """Close this thread's connection, whatever state it is in; the next query opens a new one."""
    connection = connections[alias]
    if not connection.in_atomic_block:
        connection.close()
