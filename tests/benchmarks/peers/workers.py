"""A peer's worker: all of its processes, and what one does to them."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.processes import ROOT
from tests.servers.children import children_of

GRACE = 5.0  # seconds for a worker that is asked to stop


class Worker:
    """The processes that a peer's commands start, with all of their children, wherever these belong to."""

    def __init__(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._processes = [
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for command in commands
            ]

    @property
    def runs(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    @property
    def pids(self) -> list[int]:
        """All its processes, parents first."""
        return [pid for process in self._processes if process.poll() is None for pid in family(process.pid)]

    def hold(self) -> None:
        """Stop all processes where they stand."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End all processes at once (`kill -9`), as the end of their machine does."""
        pids = self.pids
        self._signal(signal.SIGSTOP)  # so that none starts another one, or notices
        for pid in {*pids, *self.pids}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def end(self) -> None:
        """Ask it to stop, and kill what has not."""
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(0.02)
        self.kill()

    def memory(self) -> float:
        """Return the memory of all processes in MB, with what they share counted once (PSS)."""
        return sum(map(proportional, self.pids)) / 1024

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def family(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for child in children_of(pid):
        yield from family(child)


def proportional(pid: int) -> int:
    """Return a process's proportional set size in KB; 0 if it has gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
