"""Retries: run a whole operation again after contention or a lost connection."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.db import Error, connections

from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.driver import may_be_lost
from sqlqueue.database.error_codes import FOR_GOOD, ErrorKind, classify
from sqlqueue.database.lock_timeouts import limit_transaction
from sqlqueue.database.log import Log
from sqlqueue.database.session import refuse_changing_session
from sqlqueue.database.transactions import fresh_reads
from sqlqueue.signals import announce, operation_retried

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("sqlqueue")

RERUNS = 10

__all__ = ["FOR_GOOD", "RERUNS", "ErrorKind", "classify", "close_lost_connections", "drop_connection", "patiently"]
__all__ += ["in_transaction", "run", "run_once", "run_statement", "unreachable"]


def run(log: Log, operation: Callable[..., T], *args: Any, **options: Any) -> T:
    """Run an operation in one transaction; on contention run all of it again.

    The same if it adds messages whose keys turn out to have moved to another database.

    Inside a caller's `atomic` it is run once: only its owner can roll back and run again. A connection that is
    gone is the caller's to mend: what to do then depends on the operation. Raises ConfigurationError for a connection
    that changes values.
    """

    return _again(log, operation.__name__, lambda: run_once(log, operation, *args, **options))


def in_transaction(operation: Callable[Concatenate[Log, P], T]) -> Callable[Concatenate[Log, P], T]:
    """Let every call of an operation on a log run as `run` does."""

    @wraps(operation)
    def runs(log: Log, /, *args: P.args, **options: P.kwargs) -> T:
        return run(log, operation, log, *args, **options)

    return runs


def run_once(log: Log, operation: Callable[..., T], *args: Any, **options: Any) -> T:
    """The same, but contention too is raised to the caller."""
    refuse_changing_session(log)
    with log.dialect.writers, fresh_reads(log), log.atomic():
        limit_transaction(log)
        return operation(*args, **options)


def run_statement(log: Log, operation: Callable[..., T], *args: Any, **options: Any) -> T:
    """The same for an operation that is a single statement: it needs no transaction around it, and saves two round
    trips."""

    def once() -> T:
        refuse_changing_session(log)
        return operation(*args, **options)

    return _again(log, operation.__name__, once)


def _again(log: Log, name: str, once: Callable[[], T]) -> T:
    alone = not log.connection.in_atomic_block
    for attempt in range(1, RERUNS + 1):
        try:
            return once()
        except Error as error:
            if not alone or attempt == RERUNS or classify(error) is not ErrorKind.CONTENTION:
                raise
            logger.info(logfmt("operation_rerun", operation=name, attempt=attempt, error=error))
            facts = {"operation": name, "error_kind": ErrorKind.CONTENTION.name, "error": error}
            announce(operation_retried, run, **facts, database=log.label)
            time.sleep(random.uniform(0.001, 0.01) * attempt)
    raise AssertionError("unreachable")


def patiently(
    log: Log,
    operation: Callable[..., T],
    *args: Any,
    give_up: Callable[[], bool],
    failed: Callable[[Error], None] = lambda error: None,
    **options: Any,
) -> T | None:
    """Call an operation until it succeeds, through lost connections and all other errors that may pass (so it must be
    one that may be run twice); None if `give_up` says so between two tries. It runs as it is, in transactions of its
    own if it needs any. failed: is called with each error. Raises errors that are for good."""
    wait = 0.05
    while True:
        try:
            return operation(*args, **options)
        except Error as error:
            kind = classify(error)
            if kind in FOR_GOOD:
                raise
            facts = {"operation": operation.__name__, "error_kind": kind.name, "error": error}
            logger.warning(logfmt("operation_held_up", **facts, retry_in=wait))
            announce(operation_retried, patiently, **facts, database=log.label)
            failed(error)
            if kind is not ErrorKind.CONTENTION:
                drop_connection(log)
            if give_up():
                return None
            time.sleep(wait)
            wait = min(wait * 2, 2.0)


def close_lost_connections() -> bool:
    """Close this thread's connections that the server has ended while they were idle, and no others; return whether
    there were any. The next query opens a new one. For a thread that has rested, before it goes on."""
    idle = (one for one in connections.all(initialized_only=True) if one.connection is not None)
    asked = (one for one in idle if not one.in_atomic_block and may_be_lost(one))
    lost = [one for one in asked if not one.is_usable()]
    for connection in lost:
        connection.close()
    return bool(lost)


def unreachable(log: Log, error: Error) -> bool:
    """Tell whether an error means that a database does not answer, outside of a transaction on it; then let the next
    query open a new connection."""
    if classify(error) is not ErrorKind.GONE or log.connection.in_atomic_block:
        return False
    drop_connection(log)
    return True


def drop_connection(log: Log) -> None:
    """Close this thread's connection, whatever state it is in; the next query opens a new one."""
    connection = log.connection
    if not connection.in_atomic_block:
        connection.close()
