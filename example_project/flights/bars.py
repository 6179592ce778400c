"""Progress bars for publishing and consuming."""

from __future__ import annotations

import subprocess
import time
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
    """The consumers' process left with an error; its log says why."""


def publish_with_bar(console: Console, total: int) -> tuple[int, float]:
    """Publish what is not published yet of the first `total` flights; return how many that were, and the seconds."""
    published = 0
    started = time.monotonic()
    with _progress(console) as progress:
        bar = progress.add_task("publish", total=max(0, total - PublishedBatch.objects.published_rows()))
        for count in publish_flights(total):
            published += count
            progress.update(bar, advance=count)
    return published, time.monotonic() - started


def consume_with_bars(console: Console, log: Path) -> float:
    """Run the consumers until everything due is settled, a bar for each group; return the seconds."""
    counter = SettledCounter(TOPIC)
    started = time.monotonic()
    command = ["runconsumers", "--topic", TOPIC, "--processes", "2", "--threads", "4", "--drain"]
    with _progress(console) as progress, child(*command, log=log, DEBUG="false") as consumers:
        bars = {group: progress.add_task(group, total=counter.total) for group in GROUPS}
        while (code := _wait(consumers)) is None:
            _show(progress, bars, counter)
        seconds = time.monotonic() - started
        _show(progress, bars, counter)
    if code:
        raise ConsumersFailed(f"The consumers left with exit code {code}.")
    return seconds


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _show(progress: Progress, bars: dict[str, TaskID], counter: SettledCounter) -> None:
    for group, settled in counter.settled().items():
        if group in bars:
            progress.update(bars[group], completed=settled)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
    )
