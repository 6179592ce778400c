"""How exactly a rate limit is kept by many processes with uneven partitions, before and after some of them are killed.

`python -m tests.benchmarks.limits --database mariadb --processes 20 --rate 100/s --seconds 60`

A quarter of the partitions has a backlog; the others get two fifths of the rate as it comes. Figures are of the
handlers' own notes of when they were called: the share of the limit that was used, and by how many messages it was
exceeded at most, over any stretch of time.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.databases import NAMES, migrated
from tests.processes import ROOT, wait_until

STEADY = 10.0  # seconds of steady demand before the measurement
ARRIVING = 0.4  # of the rate
EVERY = 0.2  # seconds between two publishes of what arrives


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--rate", default="100/s")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--killed", type=int, default=5, help="processes, after the measurement")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "PARTITIONS": str(2 * arguments.processes),
            "RATE_LIMIT": arguments.rate,
            "LIMITED_FILE": str(Path(folder, "notes")),
        }
        with migrated(arguments.database, "tests.benchmarks.settings", **settings):
            measure(arguments, Path(folder))


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    from sqlqueue.conf import settings
    from sqlqueue.core.flow import Rate
    from sqlqueue.models import SubscriberHeartbeat

    rate, notes = Rate(arguments.rate).per_second, folder / "notes"
    table = Table(title=f"{arguments.rate} on {arguments.processes} processes, {arguments.database}")
    for name in ("what", "seconds", "messages", "of the limit", "exceeded by at most", "allowed"):
        table.add_column(name, justify="left" if name == "what" else "right")
    allowed = 1.25 * settings.BALANCE_INTERVAL * rate + 1

    def add(what: str, began: float, ended: float) -> None:
        times = noted(notes)
        count = sum(began <= at < ended for at in times)
        seconds = ended - began
        figures = (f"{seconds:.0f}", f"{count:,}", f"{count / rate / seconds:.3f}")
        table.add_row(what, *figures, f"{excess([at for at in times if at < ended], rate):,.1f}", f"{allowed:,.0f}")

    with consumers(folder, arguments.processes), demand(rate, arguments.seconds + 90):
        wait_until(lambda: notes.exists() and noted(notes), 60)
        time.sleep(STEADY)
        began = time.time()
        time.sleep(arguments.seconds)
        add("steady demand", began, time.time())
        if arguments.killed:
            pids = list(SubscriberHeartbeat.objects.alive().values_list("pid", flat=True).order_by("pid"))
            for pid in pids[: arguments.killed]:
                os.kill(pid, signal.SIGKILL)
            began = time.time()
            time.sleep(settings.LEASE_DURATION)
            add(f"after {arguments.killed} were killed, until their leases end", began, time.time())
            began = time.time()
            time.sleep(settings.LEASE_DURATION)
            add("after that", began, time.time())
    Console().print(table)
    Console().print(f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.")


def noted(notes: Path) -> list[float]:
    """Return when handlers were called."""
    return sorted(float(line) for line in notes.read_text().splitlines())


def excess(times: Sequence[float], rate: float) -> float:
    """Return by how many messages a rate was exceeded at most, over any stretch of time."""
    most = lowest = 0.0
    for number, at in enumerate(times):
        ahead = number - rate * (at - times[0])
        lowest = min(lowest, ahead)
        most = max(most, ahead + 1 - lowest)
    return most


@contextmanager
def demand(rate: float, seconds: float) -> Iterator[None]:
    """Publish a backlog into a quarter of the partitions, and a part of the rate into the others as time goes by."""
    from sqlqueue import NewMessage, publish_many
    from sqlqueue.core.keys import partition_of

    partitions = int(os.environ["PARTITIONS"])
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < partitions:
        keys.setdefault(partition_of(f"k{number}", partitions), f"k{number}")
        number += 1
    full, ended = max(1, partitions // 4), threading.Event()
    backlog = round(rate * seconds)
    publish_many("limited", (NewMessage({}, key=keys[n % full]) for n in range(backlog)))

    def arrive() -> None:
        sent, began = 0, time.monotonic()
        while not ended.wait(EVERY):
            due = int((time.monotonic() - began) * rate * ARRIVING)
            some = [NewMessage({}, key=keys[full + n % (partitions - full)]) for n in range(sent, due)]
            if some:
                publish_many("limited", some)
            sent = due

    thread = threading.Thread(target=arrive, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def consumers(folder: Path, processes: int) -> Iterator[None]:
    """Run `runconsumers` until each process holds partitions."""
    from sqlqueue import publish
    from sqlqueue.models import PartitionLease

    publish("limited", {})
    words = [sys.executable, str(ROOT / "manage.py"), "runconsumers", "--noreload", "--topic", "limited"]
    words += [f"--processes={processes}"]
    with Path(folder, "log").open("w") as log:
        process = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=log, stderr=log)
        try:

            def shared() -> bool:
                counts: dict[str, int] = defaultdict(int)
                for holder in PartitionLease.objects.filter(topic="limited").values_list("holder", flat=True):
                    counts[holder] += 1
                return len(counts) == processes and "" not in counts

            wait_until(shared, 240, lambda: Path(folder, "log").read_text()[-2_000:])
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    main()
