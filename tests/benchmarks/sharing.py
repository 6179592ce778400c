"""Measure how much faster several processes handle one partition that they share: `python -m tests.benchmarks.sharing`.

Each process has one thread, and the handler sleeps for 10 ms. The clock runs from the moment at which the group is
resumed, with all leases held, to the settle of the last message.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.databases import NAMES, migrated
from tests.processes import ROOT, wait_until

TOPIC, GROUP = "shared", "default"
ENDS = 600.0  # seconds that the last message is waited for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--messages", type=int, default=500, help="for each process")
    arguments = parser.parse_args()
    with migrated(arguments.database, "tests.benchmarks.settings"):
        table = Table(title=f"One partition, shared, {arguments.database}")
        for name in ("processes", "messages/s", "ratio to the first"):
            table.add_column(name, justify="right")
        rates = [rate(processes, arguments.messages * processes) for processes in arguments.processes]
        for processes, found in zip(arguments.processes, rates):
            table.add_row(str(processes), f"{found:,.0f}", f"{found / rates[0]:.2f}")
        Console().print(table)
        Console().print(f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.")


def rate(processes: int, messages: int) -> float:
    """Return how many messages a second so many processes handle."""
    from sqlqueue import publish, publish_many
    from sqlqueue.conf import settings
    from sqlqueue.log.status import unread_streams
    from sqlqueue.models import PartitionLease
    from sqlqueue.operations.pause import pause, resume

    publish(TOPIC, 0)
    pause(settings.DATABASE, TOPIC)
    publish_many(TOPIC, range(messages))
    with consumers(processes) as log:
        leases = PartitionLease.objects.filter(topic=TOPIC, consumer_group=GROUP).exclude(holder="")
        wait_until(lambda: leases.values("holder").distinct().count() == processes, ENDS, log.read_text)
        began = time.perf_counter()
        resume(settings.DATABASE, TOPIC)
        wait_until(lambda: not unread_streams(settings.DATABASE, GROUP, TOPIC), ENDS, log.read_text)
        return messages / (time.perf_counter() - began)


@contextmanager
def consumers(processes: int) -> Iterator[Path]:
    """Run `runconsumers` with so many processes; yield the file of their output."""
    env = {**os.environ, "SHARING": str(processes), "PYTHONPATH": str(ROOT)}
    words = ["runconsumers", "--noreload", f"--topic={TOPIC}", "--threads=1", f"--processes={processes}"]
    with tempfile.TemporaryDirectory() as folder, (log := Path(folder, "log")).open("w") as output:
        command = [sys.executable, str(ROOT / "manage.py"), *words]
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    main()
