"""The supervisor: starts consumer processes, restarts those that die, and passes a stop on to all of them."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING

from sqlqueue.conf import settings
from sqlqueue.consumers.process import worker
from sqlqueue.consumers.process.endpoints import Endpoints, ProcessHealth, open_servers
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.consumers.process.process_group import FIRST_PAUSE, SETTLED_IN, ProcessGroup
from sqlqueue.consumers.process.signals import StopRequests
from sqlqueue.consumers.process.worker import LEAVE, SHOW_STACKS, STOP, WorkerOptions, main
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.log import Log
from sqlqueue.leases import heartbeat
from sqlqueue.signals import announce, process_died

if TYPE_CHECKING:
    from sqlqueue.monitoring.shared_metrics import SharedMetrics

logger = logging.getLogger("sqlqueue")

SHORT_LIFE = 10.0  # seconds: one that dies sooner is restarted later each time
LONGEST_PAUSE = 30.0
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
    group: ProcessGroup
    ended_at: float | None = None  # when it was told to end because it hangs


class Supervisor:
    """Keeps `processes` consumer processes alive for each of the logs (None: for the only one). Holds no lease and,
    between two deaths, no connection."""

    def __init__(
        self,
        options: WorkerOptions,
        processes: int,
        endpoints: Endpoints | None = None,
        logs: Sequence[Log | None] = (None,),
    ):
        self.options, self.processes, self.endpoints = options, processes, endpoints or Endpoints()
        self._groups = [ProcessGroup(log, processes) for log in logs]
        self._context = multiprocessing.get_context("spawn")
        self._children: list[Child] = []
        self._looked_at = time.monotonic()
        self._stops = StopRequests()
        self._passed_on = 0  # of these requests
        self._failed = False
        self._shared: SharedMetrics | None = None
        self._wakeup_reader, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_writer, False)

    def run(self) -> int:
        """Run until everything is done or stopped; return the exit status: 0, or 1 if a process failed during a stop,
        or a drain was stopped, or its processes could not start."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, frame: self._stops.add())
            # The system may deliver a signal to another thread; the pipe then ends this thread's wait.
            signal.set_wakeup_fd(self._wakeup_writer)
        atexit.register(self._exit)  # before multiprocessing's own exit, which waits for the children
        servers = self._open_servers()
        try:
            while self._children or (self._pending() and not self._stops.count):
                self._start_due()
                self._wait()
                self._end_hung()
                self._reap()
                self._forget_deaths()
        finally:
            servers.close()
            self._shut_down()
            for group in self._groups:
                group.forget_all_deaths()
            atexit.unregister(self._exit)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if threading.current_thread() is threading.main_thread():
                signal.set_wakeup_fd(-1)
        return int(self._failed or (self.options.drain and self._stops.count > 0))

    def _open_servers(self) -> ExitStack:
        metrics: Callable[[], bytes] = bytes
        if self.endpoints.metrics is not None:
            from sqlqueue.monitoring.shared_metrics import SharedMetrics  # an extra

            self._shared = SharedMetrics()
            metrics = self._shared.exposition
        return open_servers(self.endpoints, self.health, metrics)

    def _pending(self) -> list[float]:
        return [at for group in self._groups for at in group.pending]

    def health(self) -> ProcessHealth:
        """Return the health of the processes. From any thread."""
        processes = {child.name: child.liveness for child in list(self._children)}
        missing = sum(group.wanted for group in self._groups) - len(processes)
        return ProcessHealth(processes, missing, self._stops.count > 0)

    def _start_due(self) -> None:
        if self._stops.count:
            return
        for group in self._groups:
            for _ in range(group.take_due(time.monotonic())):
                self._start(group)

    def _start(self, group: ProcessGroup) -> None:
        name = heartbeat.subscriber_name()
        ours, theirs = self._context.Pipe()
        liveness = Liveness(self._context)
        options = replace(self.options, log=group.log)
        process = self._context.Process(target=main, args=(options, name, theirs, liveness), name="sqlqueue-consumer")
        process.start()
        theirs.close()
        self._children.append(Child(process, ours, name, liveness, time.monotonic(), group))
        logger.info(logfmt("process_started", child=process.pid, subscriber=name, **_served(group)))

    def _wait(self) -> None:
        timeout = settings.HUNG_AFTER / HUNG_LOOKS
        if (pending := self._pending()) and not self._stops.count:
            timeout = min(timeout, max(0.0, min(pending) - time.monotonic()))
        for ready in wait([*(child.process.sentinel for child in self._children), self._wakeup_reader], timeout):
            if ready == self._wakeup_reader:
                os.read(self._wakeup_reader, 100)
                if self._stops.count > self._passed_on:
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
        self._passed_on = self._stops.count
        command = STOP if self._stops.count == 1 else LEAVE
        if command == STOP:  # it may never learn from a server that is frozen whether leases were freed
            signal.setitimer(signal.ITIMER_REAL, settings.SHUTDOWN_TIMEOUT + worker.LATEST_END + LAST_CHANCE)
        logger.info(
            logfmt("stopping", how="gracefully" if command == STOP else "at once", children=len(self._children))
        )
        self._tell(self._children, command)
        if self._stops.count > 2:
            for child in self._children:
                child.process.kill()

    def _tell(self, children: Sequence[Child], command: str) -> None:
        for child in children:
            try:
                child.pipe.send(command)
            except OSError:
                continue

    def _reap(self) -> None:
        for child in [child for child in self._children if child.process.exitcode is not None]:
            self._children.remove(child)
            child.pipe.close()
            child.process.join()
            if self._shared is not None and child.process.pid is not None:
                self._shared.merge_dead(child.process.pid)
            self._follow(child, child.process.exitcode)

    def _follow(self, child: Child, code: int | None) -> None:
        """Do what a process's end asks for: usually another one takes its place."""
        group = child.group
        if self._stops.count and code == -signal.SIGTERM and not child.liveness.has_started:
            code = 0  # of a signal to the whole process group: it has not begun anything
        if code == 0 and (self._stops.count or (self.options.drain and child.ended_at is None)):
            group.wanted -= 1
            return
        if self._stops.count:
            self._free(child, code, None)
            self._failed = self._failed or code != 0
            return
        group.died_at_start = 0 if child.liveness.has_started else group.died_at_start + 1
        if self.options.drain and group.died_at_start >= STARTS_TRIED:
            self._free(child, code, None)
            self._give_up(group, code)
            return
        lived = time.monotonic() - child.started
        group.pause = FIRST_PAUSE if lived > SHORT_LIFE else min(group.pause * 2, LONGEST_PAUSE)
        self._free(child, code, group.pause)
        group.pending.append(time.monotonic() + group.pause)
        fields = {"child": child.process.pid, "subscriber": child.name, "exit": code, "lived": lived}
        announce(process_died, Supervisor, **fields, restart_in=group.pause, database=group.label)

    def _give_up(self, group: ProcessGroup, code: int | None) -> None:
        """End a drain whose processes cannot start, with a log line and status 1. Processes of this database that still
        run are stopped gracefully; those of others drain theirs."""
        meaning = "none of them has started to work: their output before they died tells why"
        logger.error(logfmt("drain_given_up", died=group.died_at_start, exit=code, meaning=meaning, **_served(group)))
        self._failed = True
        group.wanted -= 1 + len(group.pending)
        group.pending = []
        self._tell([child for child in self._children if child.group is group], STOP)

    def _free(self, child: Child, code: int | None, restart_in: float | None) -> None:
        """Free the leases of a dead process, and record its death; restart_in: None if no successor comes. Of several
        databases this one may be the one that does not answer: the others' processes are not to wait for it."""
        if not code:  # it has left its leases itself
            return
        if child.group.log is None:
            child.group.record_death(child.name, code, restart_in)
        else:
            threading.Thread(target=child.group.record_death, args=(child.name, code, restart_in), daemon=True).start()

    def _forget_deaths(self) -> None:
        now = time.monotonic()
        for group in self._groups:
            working = [each for each in self._children if each.group is group and each.liveness.has_started]
            group.forget_deaths(each.started for each in working if now > each.started + SETTLED_IN)

    def _exit(self) -> None:
        """Stop the children at the process's exit, while run() may go on in another thread, as with a reloader: it is
        to replace none of them."""
        self._stops.add()
        self._shut_down()

    def _shut_down(self) -> None:
        """Close the children's pipes, which stops them, and remove the shared metrics once they have ended."""
        for child in self._children:
            child.pipe.close()
        if self._shared is not None:
            for child in self._children:
                child.process.join()
            self._shared.remove()
            self._shared = None


def _served(group: ProcessGroup) -> dict[str, str]:
    return {} if group.log is None else {"database": group.label}
