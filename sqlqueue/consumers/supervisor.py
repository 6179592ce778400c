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
from sqlqueue.consumers.ports import Ports, Vitals, close_windows, open_windows
from sqlqueue.consumers.process import LEAVE, SHOW_STACKS, STOP, Orders, main
from sqlqueue.consumers.pulse import Pulse
from sqlqueue.core.lines import line
from sqlqueue.leases import heartbeat, hold

if TYPE_CHECKING:
    from sqlqueue.observe.shared_metrics import SharedMetrics
    from sqlqueue.observe.window import Window

logger = logging.getLogger("sqlqueue")

SHORT_LIFE = 10.0  # seconds: one that dies sooner is restarted later each time
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
STARTS_TRIED = 4  # in a row, by a drain: processes that die before they have started
HUNG_LOOKS = 10  # at the pulses, in the time after which a loop hangs
LAST_CHANCE = 5.0  # seconds that a process which hangs has after SIGTERM, should it come to life


@dataclass(slots=True)
class Child:
    """One consumer process incarnation: its name is never used again."""

    process: SpawnProcess
    line: Connection
    name: str
    pulse: Pulse
    started: float
    ended_at: float | None = None  # when it was told to end, for it hangs


class Supervisor:
    """Keeps `processes` consumer processes alive. Holds no lease and, between two deaths, no connection."""

    def __init__(self, orders: Orders, processes: int, ports: Ports | None = None):
        self.orders, self.processes, self.ports = orders, processes, ports or Ports()
        self._context = multiprocessing.get_context("spawn")
        self._children: list[Child] = []
        self._pending: list[float] = []  # when to start the next ones
        self._wanted = processes  # less those that have drained everything
        self._pause = FIRST_PAUSE
        self._died_at_start = 0  # processes, one after another
        self._looked_at = time.monotonic()
        self._stops = 0
        self._failed = False
        self._shared: SharedMetrics | None = None
        self._bell, self._ringer = os.pipe()
        os.set_blocking(self._ringer, False)

    def run(self) -> int:
        """Run until everything is done or stopped; return the exit status: 0, or 1 if processes had to be left
        behind, or a drain's could not start."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)
            # The system may deliver a signal to another thread, and then nothing else interrupts this one's waiting.
            signal.set_wakeup_fd(self._ringer)
        atexit.register(self._leave_in_order)  # before multiprocessing's own exit, which waits for the children
        self._pending = [0.0] * self.processes
        windows = self._open_windows()
        try:
            while self._children or (self._pending and not self._stops):
                self._start_due()
                self._wait()
                self._end_hung()
                self._bury()
        finally:
            close_windows(windows)
            self._leave_in_order()
            atexit.unregister(self._leave_in_order)
            if threading.current_thread() is threading.main_thread():
                signal.set_wakeup_fd(-1)
        return int(self._failed)

    def _open_windows(self) -> list[Window]:
        metrics: Callable[[], bytes] = bytes
        if self.ports.metrics is not None:
            from sqlqueue.observe.shared_metrics import SharedMetrics  # an extra

            self._shared = SharedMetrics()
            metrics = self._shared.exposition
        return open_windows(self.ports, self.vitals, metrics)

    def vitals(self) -> Vitals:
        """Return how the processes are. From any thread."""
        pulses = {child.name: child.pulse for child in list(self._children)}
        return Vitals(pulses, self._wanted - len(pulses), self._stops > 0)

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
        pulse = Pulse(self._context)
        process = self._context.Process(target=main, args=(self.orders, name, theirs, pulse), name="sqlqueue-consumer")
        process.start()
        theirs.close()
        self._children.append(Child(process, ours, name, pulse, time.monotonic()))
        logger.info(line("process_started", child=process.pid, subscriber=name))

    def _wait(self) -> None:
        timeout = settings.HUNG_AFTER / HUNG_LOOKS
        if self._pending and not self._stops:
            timeout = min(timeout, max(0.0, min(self._pending) - time.monotonic()))
        for ready in wait([*(child.process.sentinel for child in self._children), self._bell], timeout):
            if ready == self._bell:
                os.read(self._bell, 100)
                if self._stops:
                    self._pass_on()

    def _end_hung(self) -> None:
        """End processes whose loops hang: their leases have been left to expire; a fresh process can do better.

        Not right after this process has been away itself: then the others may only have been so, too.
        """
        now, before = time.monotonic(), self._looked_at
        self._looked_at = now
        if now - before > settings.HUNG_AFTER / 2:
            return
        for child in self._children:
            hung = child.pulse.hung_for
            if child.ended_at is not None:
                if now > child.ended_at + LAST_CHANCE and hung > LAST_CHANCE:
                    child.process.kill()
            elif hung > settings.HUNG_AFTER and child.process.pid is not None:
                child.ended_at = now
                logger.error(line("process_hangs", child=child.process.pid, subscriber=child.name, seconds=hung))
                try:
                    os.kill(child.process.pid, SHOW_STACKS)
                    child.process.terminate()
                except ProcessLookupError:
                    continue

    def _pass_on(self) -> None:
        word = STOP if self._stops == 1 else LEAVE
        logger.info(line("stopping", how="gracefully" if word == STOP else "at once", children=len(self._children)))
        for child in self._children:
            try:
                child.line.send(word)
            except OSError:
                continue
        if self._stops > 2:
            for child in self._children:
                child.process.kill()

    def _bury(self) -> None:
        for child in [child for child in self._children if child.process.exitcode is not None]:
            self._children.remove(child)
            child.line.close()
            child.process.join()
            if self._shared is not None and child.process.pid is not None:
                self._shared.bury(child.process.pid)
            code = child.process.exitcode
            if code == 0 and (self._stops or (self.orders.drain and child.ended_at is None)):
                self._wanted -= 1
                continue
            if code != 0:
                self._free(child)
            if self._stops:
                self._failed = self._failed or code != 0
                continue
            self._died_at_start = 0 if child.pulse.has_started else self._died_at_start + 1
            if self.orders.drain and self._died_at_start >= STARTS_TRIED:
                self._give_up(code)
                continue
            lived = time.monotonic() - child.started
            self._pause = FIRST_PAUSE if lived > SHORT_LIFE else min(self._pause * 2, LONGEST_PAUSE)
            self._pending.append(time.monotonic() + self._pause)
            facts = {"child": child.process.pid, "subscriber": child.name, "exit": code, "lived": lived}
            logger.error(line("process_died", **facts, restart_in=self._pause))

    def _give_up(self, code: int | None) -> None:
        """End a drain whose processes cannot start, with a log line and status 1. Processes that still run are stopped
        gracefully."""
        meaning = "none of them has started to work: what each has said before it died tells why"
        logger.error(line("drain_given_up", died=self._died_at_start, exit=code, meaning=meaning))
        self._failed = True
        self._stops = max(1, self._stops)
        self._pass_on()

    def _free(self, child: Child) -> None:
        """Free a dead incarnation's leases now instead of when they expire; it can do nothing any more."""
        try:
            hold.free(settings.DATABASE, child.name)
            heartbeat.leave(settings.DATABASE, child.name)
        except Error as error:
            logger.warning(line("leases_not_freed", subscriber=child.name, error=error, meaning="they expire"))
        finally:
            connections.close_all()

    def _leave_in_order(self) -> None:
        """Children whose line is closed stop by themselves. What they have shared is removed after them."""
        for child in self._children:
            child.line.close()
        if self._shared is not None:
            for child in self._children:
                child.process.join()
            self._shared.remove()
            self._shared = None
