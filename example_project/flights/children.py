"""Management commands as child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from django.conf import settings

GRACE_SECONDS = 30.0


@contextmanager
def child(*arguments: str, log: Path | None = None, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a management command while the body runs, and end it, by its id, when the body returns or raises.

    Its output goes to the file `log`, or to this process's output. It has a session of its own: a Ctrl-C in the
    terminal reaches this process only, which then ends the child.
    """
    output = log.open("wb") if log else None
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "django", *arguments],
            cwd=settings.BASE_DIR,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end(process)
    finally:
        if output:
            output.close()


def end(process: subprocess.Popen[bytes], grace: float = GRACE_SECONDS) -> None:
    """End a process: send SIGTERM, wait `grace` seconds, then kill it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """Raise SystemExit in the body on SIGTERM, so that its children are ended, too."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
