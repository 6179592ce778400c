"""Changes topics under fire: `queuetopic alter`, a process of its own that may be harmed, changes the number of their
partitions (see altered.py).

What a killed process has left half-done is carried on by the collector of a consumer process, or by the same command
once more. A change's line in the history: its topic, what it leads to (number, first partition number, partitions), and
from when until when it was under way, since nothing was done to its process (None: it still is).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from tests.soak import altered
from tests.soak.altered import COUNTS, Stage, State, UnderWay
from tests.soak.fleet import ROOT, Fleet
from tests.soak.harm import HARM
from tests.soak.history import Journal
from tests.soak.schedule import Fault
from tests.soak.system import is_stopped, signal_if_there
from tests.soak.workload import ALTERED

POLL = 0.03  # seconds
REPEAT = 1.0  # seconds until a command that was refused, or had no database, is run again
PERSISTS = 20.0  # seconds for which it is
FAREWELL = 10.0  # seconds that the process has to end in, once its change is done


class Goal(NamedTuple):
    """What a topic is to have."""

    topic: str
    value: str


class Alterations:
    """Does what the nemesis asks for; each ends when its change is done, and returns the process id of the command."""

    def __init__(self, fleet: Fleet, url: str, journal: Journal, limit: float) -> None:
        """limit: seconds that a change is waited for."""
        self.done: Counter[str] = Counter()  # processes that alter: by how they ended
        self._fleet, self._url, self._journal, self._limit = fleet, url, journal, limit
        self._outputs = 0
        self._stopping = False

    def faults(self) -> dict[str, Callable[[Fault], list[int]]]:
        """Return what the nemesis can ask for, by the name of the fault."""
        return {"alter": self._alter, "kill-alterer": self._kill, "stop-alterer": self._stop}

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._stopping = True

    # -- what is done to it -------------------------------------------------------------------------------------------

    def _alter(self, fault: Fault) -> list[int]:
        with self._begun(fault) as (goal, _, command):
            return self._follow(goal, command)

    def _kill(self, fault: Fault) -> list[int]:
        with self._begun(fault, signal.SIGKILL) as (goal, dice, command):
            self._wait_until(lambda: command.process.poll() is not None)
            self.done["killed"] += command.process.returncode == -signal.SIGKILL
            if dice.random() < 0.5:  # else nothing but the consumers carries it on
                with self._command(goal) as another:
                    return [command.pid, *self._follow(goal, another)]
            return self._follow(goal, command)

    def _stop(self, fault: Fault) -> list[int]:
        """Others carry it on, as far as it does not hold their rows; then it goes on, whatever it meets."""
        with self._begun(fault, signal.SIGSTOP) as (goal, _, command):
            self._wait_until(lambda: command.process.poll() is not None or is_stopped(command.pid))
            if is_stopped(command.pid):
                time.sleep(fault.seconds)
                signal_if_there(command.pid, signal.SIGCONT)
                self.done["stopped"] += 1
            return self._follow(goal, command)

    @contextmanager
    def _begun(self, fault: Fault, harm: signal.Signals | None = None) -> Iterator[tuple[Goal, Random, Command]]:
        """A context with a command that was just begun. A change that is still under way is waited for before. harm:
        what it is to meet in one of its transactions."""
        dice = Random(fault.pick)
        (topic,) = dice.choices([*ALTERED], [*ALTERED.values()])
        state = self._look(topic)
        if state.change is not None:
            self._await(state.change)
            state = self._look(topic)
        goal = Goal(topic, dice.choice([value for value in map(str, COUNTS) if value != state.newest.value]))
        meets = "" if harm is None else f"{harm:d} {dice.randint(1, altered.transactions())}"
        with self._command(goal, meets) as command:
            yield goal, dice, command

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._limit
        while not self._stopping and not condition() and time.monotonic() < deadline:
            time.sleep(POLL)

    # -- following it -------------------------------------------------------------------------------------------------

    def _follow(self, goal: Goal, command: Command) -> list[int]:
        """Return once the change is done, or has never begun. A command that failed is run again for a while."""
        pid, until, noted = command.pid, time.monotonic() + PERSISTS, False
        while not self._stopping:
            ended = command.process.poll()  # before the look: else it might begin and end in between
            state = self._look(goal.topic)
            if state.change is not None:
                if not self._await(state.change):
                    self.done["left"] += 1
                    break
                noted = state.change.topic == goal.topic
                state = self._look(goal.topic)
            if state.newest.value == goal.value and state.change is None:
                if not noted:  # it was too quick to be seen
                    self._note(goal.topic, state.newest, time.monotonic(), time.monotonic())
                self.done["complete"] += 1
                command.end(FAREWELL)
                break
            if ended == -signal.SIGKILL or (ended is not None and time.monotonic() > until):
                self.done["never begun"] += 1
                break
            if ended is not None:
                time.sleep(REPEAT)
                command.start()
            time.sleep(POLL)
        return [pid]

    def _await(self, change: UnderWay) -> bool:
        """Wait for the end of the change that is under way, and write down when that was; tell whether it has come."""
        began, ended = time.monotonic(), None
        while not self._stopping and time.monotonic() < began + self._limit:
            now = self._look(change.topic).change
            if now is None or (now.topic, now.later) != (change.topic, change.later):
                ended = time.monotonic()
                break
            time.sleep(POLL)
        self._note(change.topic, change.later, began, ended)
        return ended is not None

    def _note(self, topic: str, later: Stage, began: float, ended: float | None) -> None:
        self._journal.note("change", topic, [later.number, later.base, later.partitions], began, ended)

    def _look(self, topic: str) -> State:
        """Look at the tables, for as long as it takes until they answer."""
        from django.db import Error, connections

        while True:
            try:
                return altered.look(topic)
            except Error:
                connections.close_all()
                if self._stopping:
                    raise
                time.sleep(0.2)

    @contextmanager
    def _command(self, goal: Goal, harm: str = "") -> Iterator[Command]:
        self._outputs += 1
        words = [goal.topic, f"--partitions={goal.value}"]
        command = Command(self._fleet, self._url, words, f"alter-{self._outputs}.log")
        command.start(harm)
        try:
            yield command
        finally:
            command.end(0.0)


class Command:
    """The process."""

    process: subprocess.Popen[bytes]

    def __init__(self, fleet: Fleet, url: str, words: list[str], log: str) -> None:
        self._words = ["manage.py", "queuetopic", "alter", *words, "--no-input"]
        self._environment, self._log = fleet.environment(url), fleet.logs / log

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, harm: str = "") -> None:
        """Start it, or start it again. harm: as HARM says it."""
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *self._words],
                cwd=ROOT,
                env=self._environment | ({HARM: harm} if harm else {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def end(self, patience: float) -> None:
        """Let it end by itself within so many seconds, and then end it."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
