"""Progress bars for publishing and consuming."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from example_project.flights.children import child
from example_project.flights.models import PublishedBatch
from example_project.flights.progress import SettledCounter
from example_project.flights.publishing import publish_flights
from example_project.flights.rules import GROUPS, TOPIC

POLL_SECONDS = 0.5


class ConsumersFailed(Exception):
    """`runconsumers` exited with an error; its log says why."""


def publish_with_bar(console: Console, total: int) -> tuple[int, float]:
    """Publish those of the first `total` flights that are not published yet; return how many, and the seconds."""
    published = 0
    started = time.monotonic()
    with _progress(console) as progress:
        bar = progress.add_task("publish", total=max(0, total - PublishedBatch.objects.published_rows()))
        for count in publish_flights(total):
            published += count
            progress.update(bar, advance=count)
    return published, time.monotonic() - started


@contextmanager
def running_consumers(log: Path) -> Iterator[RunningConsumers]:
    """Run the consumers of all topics while the body runs."""
    with child("runconsumers", "--processes", "2", "--threads", "4", log=log, DEBUG="false") as process:
        yield RunningConsumers(process)


class RunningConsumers:
    """The process of `runconsumers`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self, seconds: float) -> None:
        """Let them go on for so long. Raises ConsumersFailed if they end."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise ConsumersFailed(f"runconsumers ended with exit code {code}.")


def consume_with_bars(console: Console, consumers: RunningConsumers) -> float:
    """Wait until every group has settled all flights, with a bar for each; return the seconds. Raises
    ConsumersFailed."""
    counter = SettledCounter(TOPIC)
    started = time.monotonic()
    with _progress(console) as progress:
        bars = {group: progress.add_task(group, total=counter.total) for group in GROUPS}
        while not _show(progress, bars, counter):
            consumers.wait(POLL_SECONDS)
    return time.monotonic() - started


def _show(progress: Progress, bars: dict[str, TaskID], counter: SettledCounter) -> bool:
    """Show how far they are; return whether that is everything."""
    settled = counter.settled()
    for group, bar in bars.items():
        progress.update(bar, completed=settled.get(group, 0))
    return all(settled.get(group, 0) == counter.total for group in bars)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
    )
