"""How long a caller waits for the reply of a `runconsumers` that has nothing else to do."""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.lateness import running
from tests.processes import ROOT

STARTS = 60.0  # seconds that the first reply is waited for
WARM = 10.0  # seconds: connections are opened, modules imported, addresses of consumers known


def answers(count: int) -> Iterator[tuple[str, list[float]]]:
    """Yield what was called, and the seconds until each reply, in order of size. Calls come at random intervals."""
    from sqlqueue import acall, call

    settings = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings", "LATENESS_FILE": os.devnull}
    env = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder, running(env, Path(folder, "log")):
        call("calls", 0, timeout=STARTS)
        end = time.monotonic() + WARM
        while time.monotonic() < end:
            timed(0, lambda n: call("calls", n, timeout=STARTS))
        yield "call", sorted(timed(number, lambda n: call("calls", n, timeout=STARTS)) for number in range(count))

        async def one_by_one() -> list[float]:
            return [await timed_async(number, acall) for number in range(count)]

        yield "acall", sorted(asyncio.run(one_by_one()))


def timed(number: int, work) -> float:
    time.sleep(random.Random(number).uniform(0.02, 0.2))
    began = time.perf_counter()
    assert work(number) == number
    return time.perf_counter() - began


async def timed_async(number: int, acall) -> float:
    await asyncio.sleep(random.Random(number).uniform(0.02, 0.2))
    began = time.perf_counter()
    assert await acall("calls", number, timeout=STARTS) == number
    return time.perf_counter() - began
