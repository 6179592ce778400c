"""How late delayed messages come to the handler of a `runconsumers` that has nothing else to do."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from tests.processes import ROOT, wait_until

MIXED = "random delays of up to 5 s, published at random intervals"
SOONER = "each due sooner than the one that was scheduled before it"
ENDS = 60.0  # seconds that the last one is waited for


def lateness(count: int) -> Iterator[tuple[str, list[float]]]:
    """Yield what was published, and the seconds by which each message came late, in order of size."""
    with tempfile.TemporaryDirectory() as folder, consumers(Path(folder, "late")) as file:
        for _ in range(5):  # connections are opened, modules imported
            soon("warm", 0.3)
            time.sleep(0.5)
        for number in range(count):
            soon(MIXED, random.Random(number).uniform(0.2, 5))
            time.sleep(random.Random(-number).uniform(0, 0.2))
        yield MIXED, measured(file, MIXED, count)
        for number in range(count // 2):
            soon(SOONER, 1.6)
            time.sleep(random.Random(number).uniform(0.1, 0.3))  # it is known of by now
            soon(SOONER, 0.5)
            time.sleep(1.5)
        yield SOONER, measured(file, SOONER, count // 2 * 2)


def soon(kind: str, seconds: float) -> None:
    from sqlqueue import publish

    due = time.time() + seconds
    publish("delayed", {"kind": kind.replace(" ", "-"), "due": due}, at=datetime.fromtimestamp(due, timezone.utc))


def measured(file: Path, kind: str, count: int) -> list[float]:
    def found() -> list[float]:
        lines = (line.split() for line in file.read_text().splitlines())
        late = [float(seconds) for name, seconds in lines if name == kind.replace(" ", "-")]
        return late if len(late) == count else []

    return sorted(wait_until(found, ENDS, f"{count} messages of {kind}"))


@contextmanager
def consumers(file: Path) -> Iterator[Path]:
    """Run `runconsumers` with one process, as a service does; yield the file in which its handler notes."""
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings",
        "LATENESS_FILE": str(file),
        "PYTHONPATH": str(ROOT),
    }
    with running(env, Path(file.parent, "log")) as said:
        soon("first", 0.1)
        wait_until(lambda: file.exists(), message=said)
        yield file


@contextmanager
def running(env: dict[str, str], output: Path) -> Iterator[Callable[[], str]]:
    """Run `runconsumers` with one process; yield what tells what it has written."""
    words = [sys.executable, str(ROOT / "manage.py"), "runconsumers", "--noreload"]
    with output.open("w") as log:
        process = subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield output.read_text
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
