"""Actors on a stage: each has a thread and a connection of its own, and only one of them moves at a time.

A step leads from just before one statement of an actor to just before its next one; COMMIT and ROLLBACK are statements
here. So the caller of the steps decides how the transactions of all actors are put together. An actor whose statement
waits for a lock of another's, by the server's own account, stands there until that one lets go; then it moves on
together with the one that did.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections

from sqlqueue.database.dialects import SQLite
from tests.servers.processlist import sessions

STEP_TIMEOUT = 30.0
USUALLY = 0.005  # seconds: a step that takes longer may be a wait, so the server is asked
READ_COMMITTED, REPEATABLE_READ = "READ COMMITTED", "REPEATABLE READ"
REPLY = "the reply"
Rewrite = Callable[[str], str]


class Crash(BaseException):
    """The actor's process was killed: nothing more of it happens."""


class Actor:
    """A thread with a connection, and what it is told to do. All methods but `park` are for the stage's thread."""

    def __init__(self, name: str, stage: Stage):
        self.name, self._stage = name, stage
        self.at = ""  # what it is about to do; "" while it has nothing to do
        self.error: BaseException | None = None
        self.loses_reply = False  # the connection breaks when its next commit has been done
        self.wrote = False  # something that others may see now, since the stage last asked
        self.session = 0
        self.connection: Any = None
        self._operation: Callable[[], object] | None = None
        self._prepared: tuple[Any, ...] = ()
        self._crashed = False
        self._go = threading.Semaphore(0)
        self.still = threading.Event()
        self.still.set()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """It has nothing to do. A waiting one may come to its end at any time, and counts when it stands still."""
        return self.still.is_set() and self._operation is None

    @property
    def parked(self) -> bool:
        """It stands just before a statement."""
        return self.still.is_set() and self._operation is not None

    def start(self, operation: Callable[[], object], patient: bool = True, isolation: str = READ_COMMITTED) -> None:
        """Begin an operation, up to its first statement. What it raises is in `error` at its end. patient: it waits for
        locks, and does not get an error at once where the server can do that."""
        assert self.idle
        self._operation, self.error, self._patient, self._isolation = operation, None, patient, isolation
        self._stage.let(self)

    def step(self) -> bool:
        """Do the statement that it stands before; return whether it could."""
        if not self.parked or self._stage.held_up(self):
            return False
        self._stage.let(self)
        if self.at == REPLY and self.parked:
            self.cut()
            self._stage.let(self)
        return True

    def crash(self) -> None:
        """Kill its process; its transaction is rolled back."""
        self.loses_reply, self.error = False, None
        if self.idle:
            return
        self._crashed = True
        sessions, deadline = self._stage.sessions, time.monotonic() + STEP_TIMEOUT
        while not self.idle:
            if self.parked:
                self._stage.let(self)
            elif sessions.separate:
                sessions.end(self.session)
                self.still.wait(0.001)
            assert time.monotonic() < deadline, f"{self.name} does not die: {self.at}"
        self._crashed, self.error = False, None
        if sessions.separate:
            sessions.end(self.session)
        self._stage.settle_down()

    def cut(self) -> None:
        """Break its connection, wherever it stands; it finds out when it next uses it."""
        if self._stage.sessions.separate and self.connection is not None and self.connection.connection is not None:
            self._stage.sessions.end(self.session)
            self._stage.settle_down()

    def end(self) -> None:
        """End its thread."""
        self.crash()
        self._operation = self._thread.join
        self._stage.let(self)
        self._thread.join(STEP_TIMEOUT)

    def let(self) -> None:
        """Let it move on; for the stage."""
        self.still.clear()
        self._go.release()

    # -- in its own thread --------------------------------------------------------------------------------------------

    def park(self, what: str) -> None:
        """Stand still until the next step."""
        if not self._crashed:
            self.at = what
            self.still.set()
            self._go.acquire()
        if self._crashed:
            self._hang_up()  # first: Django would commit when it turns autocommit on again
            raise Crash

    def _live(self) -> None:
        while True:
            self._go.acquire()
            if self._operation == self._thread.join:
                break
            try:
                self._prepare()
                self._operation()
            except Crash:
                pass
            except BaseException as error:
                self.error = error
            if self._crashed:
                self._forget_connection()
            self._operation, self.at = None, ""
            self.still.set()
        self._forget_connection()
        self.still.set()

    def _prepare(self) -> None:
        """Have a connection that works, and stand still before each of its statements from now on."""
        connection = connections[DEFAULT_DB_ALIAS]
        connection.execute_wrappers.clear()
        if connection is not self.connection:
            self.connection = connection
            connection._commit = self._before("COMMIT", connection._commit)
            connection._rollback = self._before("ROLLBACK", connection._rollback)
        if connection.connection is not None and not connection.is_usable():
            connection.close()
        connection.ensure_connection()
        connection.close_at = None  # a handler's thread would close it for its age, and lose what is set here
        wanted = (connection.connection, self._isolation)
        if wanted != self._prepared:
            self._stage.sessions.prepare(self._isolation)
            self._prepared = wanted
        self.session = self._stage.sessions.identify(connection)
        connection.execute_wrappers.append(self._execute)

    def _hang_up(self) -> None:
        if self.connection.connection is not None:
            with suppress(Exception):  # it may be closed already
                self.connection.connection.close()

    def _forget_connection(self) -> None:
        if self.connection is not None:
            self._hang_up()
            del connections[DEFAULT_DB_ALIAS]
            self.connection, self._prepared = None, ()

    def _before(self, what: str, act: Callable[[], None]) -> Callable[[], None]:
        def parked_before() -> None:
            self.park(what)
            self._stage.history.append((self.name, what))
            try:
                act()
            finally:
                self.wrote = True
            if what == "COMMIT":
                self._await_reply()

        return parked_before

    def _execute(self, execute: Callable[..., Any], sql: str, parameters: Any, many: bool, context: Any) -> Any:
        self.session = self._stage.sessions.identify(self.connection)  # it may be a new one
        self.park(sql)
        self._stage.history.append((self.name, " ".join(sql.split()), parameters))
        try:
            result = execute(self._words(sql), parameters, many, context)
        except Error as error:
            self._stage.history.append((self.name, repr(error)))
            self._patient = True  # once is enough: while who has the lock stands still, trying again leads nowhere
            raise
        finally:
            self.wrote = self.wrote or not self.connection.in_atomic_block
        if not self.connection.in_atomic_block and sql.lstrip().startswith(("INSERT", "UPDATE", "DELETE")):
            self._await_reply()
        return result

    def _words(self, sql: str) -> str:
        sql = self._stage.rewrite(sql)
        return sql if self._patient else self._stage.sessions.impatient(sql)

    def _await_reply(self) -> None:
        """A commit has been done; if its reply is to be lost, the stage breaks the connection here."""
        if self.loses_reply and self._stage.sessions.separate:
            self.loses_reply = False
            self.park(REPLY)
            with self.connection.wrap_database_errors:
                self.connection.connection.cursor().execute("SELECT 1")


class Stage:
    """Holds the actors, and lets them move one at a time."""

    def __init__(self, *names: str, rewrite: Rewrite = str):
        self.rewrite = rewrite  # of every statement of every actor: how a fault is planted
        self.sessions = sessions()
        self.history: deque[tuple[object, ...]] = deque(maxlen=500)  # tells how a failure came about
        self.actors = [Actor(name, self) for name in names]

    def let(self, actor: Actor) -> None:
        """Let an actor move on, and return when no actor moves any more."""
        actor.let()
        actor.still.wait(USUALLY)
        self.settle_down()

    def settle_down(self) -> None:
        """Return when every actor stands still, or waits for a lock that a standing one has."""
        deadline = time.monotonic() + STEP_TIMEOUT
        while moving := [actor for actor in self.actors if not actor.still.is_set()]:
            waiting = self.sessions.waiting()
            if all(actor.session in waiting for actor in moving):
                return
            assert time.monotonic() < deadline, f"{[(actor.name, actor.at) for actor in moving]} neither move nor wait"
            moving[0].still.wait(0.001)

    def held_up(self, actor: Actor) -> bool:
        """Tell whether a step of this actor could lead nowhere while the others stand where they do."""
        if actor.connection.connection is None:
            return False
        others = [other.connection for other in self.actors if other is not actor and other.connection is not None]
        return self.sessions.holds_up(actor.connection, actor.at, others)

    def finish(self, *actors: Actor, most: int = 10_000) -> None:
        """Let these actors, or all, move in turn until they have nothing left to do."""
        for _ in range(most):
            busy = [actor for actor in actors or self.actors if not actor.idle]
            if not busy:
                return
            for actor in busy:
                actor.step()
            self.settle_down()
        raise AssertionError(f"no end of {[(actor.name, actor.at) for actor in busy]}")

    def end(self) -> None:
        """Crash the actors that are at work, and end all threads."""
        for actor in self.actors:
            actor.crash()
        for actor in self.actors:
            actor.end()


@contextmanager
def stage(*names: str, rewrite: Rewrite = str) -> Iterator[Stage]:
    """A stage for one test. Its actors stand for processes: they share no lock of this one."""
    writers, SQLite.writers = SQLite.writers, nullcontext()
    made = Stage(*names, rewrite=rewrite)
    try:
        yield made
    finally:
        made.end()
        SQLite.writers = writers
