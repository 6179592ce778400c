"""Runs of the harness that tests start: a process of its own each, which is ended whatever happens."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.processes import ROOT
from tests.soak.workload import SABOTAGE

LEFT_OVER = ("DATABASE", "DATABASE_URL", "DJANGO_SETTINGS_MODULE", "SQLQUEUE", SABOTAGE)


class SoakRun:
    """`python -m tests.soak` with these words; in a `with` block."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.history = folder / "history"
        self._output = folder / "output"
        environment = {name: value for name, value in os.environ.items() if name not in LEFT_OVER}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak", *words, f"--history={self.history}"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> "SoakRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # it ends its processes and its server
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait(self, timeout: float) -> int:
        """Return the exit status when it has ended."""
        return self._process.wait(timeout)

    @property
    def report(self) -> dict[str, Any]:
        """The figures of the run that has ended."""
        return json.loads((self.history / "report.json").read_text())
