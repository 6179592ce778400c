"""One consumer process: what a supervisor starts."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING

from django.db import Error, NotSupportedError

from sqlqueue.consumers.background.task import Trouble
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.consumers.process.signals import StopRequests, let_children_end
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.write_probe import write_refused

if TYPE_CHECKING:
    from sqlqueue.consumers.process.endpoints import Endpoints

logger = logging.getLogger("sqlqueue")

DATABASE_RETRY = 1.0  # seconds between two looks whether a database answers
WAITS = "the process waits for the database, and starts once"
# Objects more than before, until the youngest are looked through; how long a string among them is does not count.
LOOK_EVERY = 10_000
STOP, LEAVE = "stop", "leave"
INTERRUPTED = 130
LATEST_END = 25.0  # seconds after SHUTDOWN_TIMEOUT: then the system ends the process
SHOW_STACKS = signal.SIGUSR1  # writes every thread's stack to standard error, even in a process that hangs


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a consumer process runs. Plain values, because they are passed to another process."""

    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    threads: int | None = None
    drain: bool = False
    verbosity: int = 1
    log: Log | None = None  # of the database that it serves; None: of the only one


def main(options: WorkerOptions, name: str, pipe: Connection, liveness: Liveness) -> None:
    """Set up Django and run a subscriber until its work is done, a signal comes, or the supervisor stops it or has
    ended."""
    import django

    # The terminal's Ctrl-C reaches the whole group; the supervisor passes it on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(RuntimeError, ValueError):  # there may be no standard error
        faulthandler.register(SHOW_STACKS)
    django.setup()
    serve(options, name, pipe, liveness)


def serve(
    options: WorkerOptions, name: str, pipe: Connection | None, liveness: Liveness, endpoints: Endpoints | None = None
) -> None:
    """Run a subscriber in this process, whose main thread this is. Exits with status 1 if that fails, or a drain
    without a supervisor is stopped."""
    # A spawned process imports this module before Django is set up; what needs models is imported here.
    from sqlqueue.conf import settings
    from sqlqueue.consumers.declare.registry import registry
    from sqlqueue.consumers.declare.relays import of_database
    from sqlqueue.consumers.engine.subscriber import Subscriber
    from sqlqueue.consumers.process.endpoints import ProcessHealth, open_servers, own_metrics
    from sqlqueue.monitoring import logs

    logs.show(options.verbosity)
    registry.discover()
    log = options.log or home_log()
    chosen = registry.select(options.groups, options.topics)
    while (consumers := of_database(log, chosen)) is None:  # the other databases have processes of their own
        if options.drain:
            sys.exit(1)
        if _stopped(pipe, liveness, DATABASE_RETRY):
            return
    if not _ready(log, options, pipe, liveness):
        return
    subscriber = Subscriber(consumers, log=log, name=name, threads=options.threads, liveness=liveness)

    requests = StopRequests()

    def stop(how: Callable[[], None]) -> None:
        # By SIGALRM, whatever the threads wait for: a server that is frozen or cut off may never answer.
        signal.setitimer(signal.ITIMER_REAL, settings.SHUTDOWN_TIMEOUT + LATEST_END)
        how()

    def leave_or_stop(number: int, frame: FrameType | None) -> None:
        # Of a signal to the whole process group the supervisor's "stop" speaks, too, before it or after it.
        if requests.add() > 1:
            os._exit(INTERRUPTED)  # the second request: at once; the leases expire, or the supervisor frees them
        stop(subscriber.stop_soon)

    numbers = [signal.SIGTERM, signal.SIGINT] if pipe is None else [signal.SIGTERM]
    for number in numbers:
        signal.signal(number, leave_or_stop)
    let_children_end(leave_or_stop, numbers)
    if pipe is None:
        _end_in_time(numbers, settings.SHUTDOWN_TIMEOUT + LATEST_END)
    else:
        listened = pipe, partial(stop, subscriber.stop)
        threading.Thread(target=_listen, args=listened, name="sqlqueue-supervisor-listener", daemon=True).start()
    servers = ExitStack()
    if endpoints is not None:
        servers = open_servers(endpoints, lambda: ProcessHealth({name: liveness}, 0, subscriber.stopping), own_metrics)
    look_less_often()
    try:
        subscriber.run(drain=options.drain)
    finally:
        servers.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
    if subscriber.failed or (options.drain and pipe is None and requests.count):
        sys.exit(1)


def _stopped(pipe: Connection | None, liveness: Liveness, seconds: float) -> bool:
    """Wait for so many seconds; return True as soon as the process is to stop, or its supervisor has ended."""
    liveness.mark("iteration")
    if pipe is not None:
        return pipe.poll(seconds)
    time.sleep(seconds)
    return False


def _ready(log: Log, options: WorkerOptions, pipe: Connection | None, liveness: Liveness) -> bool:
    """Wait until the database answers, unless this drains: who calls that is told at once. Return False if the process
    is to stop, or its supervisor has ended, meanwhile. Exits with status 1 if a table or a column is missing."""
    from sqlqueue.database.tables import lacks_columns, queue_models

    undone = int(options.drain and pipe is None)
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(undone))  # nothing has begun
    if not options.drain and not wait_for_database(log, partial(_stopped, pipe, liveness)):
        return False
    if lacks_columns(log, queue_models()):
        meaning = "a table or a column is missing: run `python manage.py migrate sqlqueue`; the process ends"
        logger.error(logfmt("tables_missing", meaning=meaning))
        sys.exit(1)
    return True


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


def _end_in_time(numbers: Sequence[int], seconds: float) -> None:
    """Let the system end this process so long after one of these signals, even if its main thread, in which Python
    handles signals, waits for a server's answer."""
    told, teller = socket.socketpair()
    teller.setblocking(False)

    def watch() -> None:
        while number := told.recv(1):
            if number[0] in numbers:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                return

    signal.set_wakeup_fd(teller.detach(), warn_on_full_buffer=False)
    threading.Thread(target=watch, name="sqlqueue-signals", daemon=True).start()


def _listen(pipe: Connection, stop: Callable[[], None]) -> None:
    """Follow the supervisor's commands: its first one is one request with the first signal, in either order. Stop when
    it has ended."""
    try:
        while pipe.recv() != LEAVE:
            stop()
    except (EOFError, OSError):
        stop()
    else:
        os._exit(INTERRUPTED)
