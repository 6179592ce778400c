"""A consumer process of a benchmark."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.processes import ROOT


@contextmanager
def consumer_process(topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run all handlers of a topic in one process, without a supervisor above it."""
    words = ["runconsumers", "--noreload", "--processes=0", f"--topic={topic}"]
    command = [sys.executable, str(ROOT / "manage.py"), *words]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
