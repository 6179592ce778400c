"""The supervisor: starts consumer processes, restarts those that die, and passes a stop on to all of them."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import TYPE_CHECKING

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.consumers.process.endpoints import Endpoints, ProcessHealth, close_servers, open_servers
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.consumers.process.worker import LEAVE, SHOW_STACKS, STOP, WorkerOptions, main
from sqlqueue.core.logfmt import logfmt
from sqlqueue.leases import heartbeat, release

if TYPE_CHECKING:
    from sqlqueue.monitoring.http_server import HttpServer
    from sqlqueue.monitoring.shared_metrics import SharedMetrics

logger = logging.getLogger("sqlqueue")

SHORT_LIFE = 10.0  # seconds: one that dies sooner is restarted later each time
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
STARTS_TRIED = 4  # in a row, by a drain: processes that die before they have started
HUNG_LOOKS = 10  # checks of the children's liveness in the time after which a loop hangs
LAST_CHANCE = 5.0  # seconds between SIGTERM and SIGKILL for a process that hangs


@dataclass(slots=True)
class Child:
    """One consumer process: its name is never used again."""

    process: SpawnProcess
    pipe: Connection
    name: str
    liveness: Liveness
    started: float
    ended_at: float | None = None  # when it was told to end because it hangs


class Supervisor:
    """Keeps `processes` consumer processes alive. Holds no lease and, between two deaths, no connection."""

    def __init__(self, options: WorkerOptions, processes: int, endpoints: Endpoints | None = None):
        self.options, self.processes, self.endpoints = options, processes, endpoints or Endpoints()
        self._context = multiprocessing.get_context("spawn")
        self._children: list[Child] = []
        self._pending: list[float] = []  # when to start the next ones
        self._wanted = processes  # minus those that have drained everything
        self._pause = FIRST_PAUSE
        self._died_at_start = 0  # processes, one after another
        self._looked_at = time.monotonic()
        self._stops = 0
        self._failed = False
        self._shared: SharedMetrics | None = None
        self._wakeup_reader, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_writer, False)

    def run(self) -> int:
        """Run until everything is done or stopped; return the exit status: 0, or 1 if a process failed during a stop,
        or the processes of a drain could not start."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)
            # The system may deliver a signal to another thread; the pipe then ends this thread's wait.
            signal.set_wakeup_fd(self._wakeup_writer)
        atexit.register(self._shut_down)  # before multiprocessing's own exit, which waits for the children
        self._pending = [0.0] * self.processes
        servers = self._open_servers()
        try:
            while self._children or (self._pending and not self._stops):
                self._start_due()
                self._wait()
                self._end_hung()
                self._reap()
        finally:
            close_servers(servers)
            self._shut_down()
            atexit.unregister(self._shut_down)
            if threading.current_thread() is threading.main_thread():
                signal.set_wakeup_fd(-1)
        return int(self._failed)

    def _open_servers(self) -> list[HttpServer]:
        metrics: Callable[[], bytes] = bytes
        if self.endpoints.metrics is not None:
            from sqlqueue.monitoring.shared_metrics import SharedMetrics  # an extra

            self._shared = SharedMetrics()
            metrics = self._shared.exposition
        return open_servers(self.endpoints, self.health, metrics)

    def health(self) -> ProcessHealth:
        """Return the health of the processes. From any thread."""
        processes = {child.name: child.liveness for child in list(self._children)}
        return ProcessHealth(processes, self._wanted - len(processes), self._stops > 0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1

    def _start_due(self) -> None:
        now = time.monotonic()
        due = [at for at in self._pending if at <= now]
        if self._stops:
            return
        self._pending = [at for at in self._pending if at > now]
        for _ in due:
            self._start()

    def _start(self) -> None:
        name = heartbeat.subscriber_name()
        ours, theirs = self._context.Pipe()
        liveness = Liveness(self._context)
        process = self._context.Process(
            target=main, args=(self.options, name, theirs, liveness), name="sqlqueue-consumer"
        )
        process.start()
        theirs.close()
        self._children.append(Child(process, ours, name, liveness, time.monotonic()))
        logger.info(logfmt("process_started", child=process.pid, subscriber=name))

    def _wait(self) -> None:
        timeout = settings.HUNG_AFTER / HUNG_LOOKS
        if self._pending and not self._stops:
            timeout = min(timeout, max(0.0, min(self._pending) - time.monotonic()))
        for ready in wait([*(child.process.sentinel for child in self._children), self._wakeup_reader], timeout):
            if ready == self._wakeup_reader:
                os.read(self._wakeup_reader, 100)
                if self._stops:
                    self._pass_on()

    def _end_hung(self) -> None:
        """End processes whose loops hang, so that new ones replace them: their leases have been left to expire.

        Not right after this process was stopped itself: then the others may have been stopped with it.
        """
        now, before = time.monotonic(), self._looked_at
        self._looked_at = now
        if now - before > settings.HUNG_AFTER / 2:
            return
        for child in self._children:
            hung = child.liveness.hung_for
            if child.ended_at is not None:
                if now > child.ended_at + LAST_CHANCE and hung > LAST_CHANCE:
                    child.process.kill()
            elif hung > settings.HUNG_AFTER and child.process.pid is not None:
                child.ended_at = now
                logger.error(logfmt("process_hangs", child=child.process.pid, subscriber=child.name, seconds=hung))
                try:
                    os.kill(child.process.pid, SHOW_STACKS)
                    child.process.terminate()
                except ProcessLookupError:
                    continue

    def _pass_on(self) -> None:
        command = STOP if self._stops == 1 else LEAVE
        logger.info(
            logfmt("stopping", how="gracefully" if command == STOP else "at once", children=len(self._children))
        )
        for child in self._children:
            try:
                child.pipe.send(command)
            except OSError:
                continue
        if self._stops > 2:
            for child in self._children:
                child.process.kill()

    def _reap(self) -> None:
        for child in [child for child in self._children if child.process.exitcode is not None]:
            self._children.remove(child)
            child.pipe.close()
            child.process.join()
            if self._shared is not None and child.process.pid is not None:
                self._shared.merge_dead(child.process.pid)
            code = child.process.exitcode
            if code == 0 and (self._stops or (self.options.drain and child.ended_at is None)):
                self._wanted -= 1
                continue
            if code != 0:
                self._free(child)
            if self._stops:
                self._failed = self._failed or code != 0
                continue
            self._died_at_start = 0 if child.liveness.has_started else self._died_at_start + 1
            if self.options.drain and self._died_at_start >= STARTS_TRIED:
                self._give_up(code)
                continue
            lived = time.monotonic() - child.started
            self._pause = FIRST_PAUSE if lived > SHORT_LIFE else min(self._pause * 2, LONGEST_PAUSE)
            self._pending.append(time.monotonic() + self._pause)
            fields = {"child": child.process.pid, "subscriber": child.name, "exit": code, "lived": lived}
            logger.error(logfmt("process_died", **fields, restart_in=self._pause))

    def _give_up(self, code: int | None) -> None:
        """End a drain whose processes cannot start, with a log line and status 1. Processes that still run are stopped
        gracefully."""
        meaning = "none of them has started to work: their output before they died tells why"
        logger.error(logfmt("drain_given_up", died=self._died_at_start, exit=code, meaning=meaning))
        self._failed = True
        self._stops = max(1, self._stops)
        self._pass_on()

    def _free(self, child: Child) -> None:
        """Free the leases of a dead process now, before they expire."""
        try:
            release.free(settings.DATABASE, child.name)
            heartbeat.leave(settings.DATABASE, child.name)
        except Error as error:
            logger.warning(logfmt("leases_not_freed", subscriber=child.name, error=error, meaning="they expire"))
        finally:
            connections.close_all()

    def _shut_down(self) -> None:
        """Close the children's pipes, which stops them, and remove the shared metrics once they have ended."""
        for child in self._children:
            child.pipe.close()
        if self._shared is not None:
            for child in self._children:
                child.process.join()
            self._shared.remove()
            self._shared = None
