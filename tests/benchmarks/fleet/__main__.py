"""Measure how hundreds of subscribers share thousands of partitions on one MariaDB server: `make benchmark-fleet`.

Processes host the subscribers; each of these is what a consumer process is to the database: its own name, threads and
connections, and every group. Some processes are killed at once, later the others are restarted in turn. A time to
balance ends when each group's leases are held by living subscribers, evenly. docs/operations/scaling.md explains the
figures.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.fleet.host import topics_and_groups
from tests.logs import LOG
from tests.processes import ROOT
from tests.servers.mariadb import PrivateMariaDB

CONNECTIONS = 9  # of a subscriber
ENDS = 600.0  # seconds that a balance is waited for
# Of which leases each subscriber holds how many, and how many of them are about to end.
HELD = """
    SELECT watched.topic, watched.consumer_group, watched.holder, COUNT(*), SUM(watched.valid_until <= NOW(6))
    FROM sqlqueue_partition_lease watched GROUP BY watched.topic, watched.consumer_group, watched.holder
"""
ALIVE = """
    SELECT COUNT(DISTINCT watched.subscriber) FROM sqlqueue_subscriber_heartbeat watched
    WHERE watched.expires_at > NOW(6)
"""
LAST_END = """
    SELECT GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), MAX(watched.valid_until))) / 1e6
    FROM sqlqueue_partition_lease watched WHERE watched.holder IN ({holders})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscribers", type=int, default=300)
    parser.add_argument("--processes", type=int, default=10, help="that host them")
    parser.add_argument("--leases", type=int, default=5_000)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0, help="of idling, and of work")
    parser.add_argument("--rate", type=int, default=100, help="messages a second while there is work")
    parser.add_argument("--at-once", action="store_true", help="start all processes at once, not one after the other")
    parser.add_argument("--no-restart", action="store_true", help="leave out the rolling restart")
    arguments = parser.parse_args()
    options = (
        f"--max-connections={arguments.subscribers * CONNECTIONS + 100}",
        "--performance-schema=ON",
        "--performance-schema-digests-size=5000",
        "--open-files-limit=65535",
        "--back-log=4000",
    )
    with PrivateMariaDB(options=options) as server:
        os.environ["DATABASE_URL"] = server.url("mysql")
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        os.environ["SQLQUEUE"] = f'{{"PARTITIONS": {arguments.leases // arguments.groups}}}'
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        with tempfile.TemporaryDirectory() as folder:
            Measurement(arguments, Path(folder)).run()


class Measurement:
    """The phases, in order."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        from tests.benchmarks.fleet.server_load import Meter

        self.arguments, self.folder = arguments, folder
        self.each = arguments.subscribers // arguments.processes
        self.hosts: list[subprocess.Popen[bytes]] = []
        self.meter = Meter()
        self.times = Table(title="Until the leases are shared evenly", show_lines=False)
        columns = (
            "after",
            "seconds",
            "of them after the last lease's end, or start",
            "lock waits",
            "ms waited",
            "deadlocks",
        )
        for name in (*columns, "slowest balancing statement, ms", "which"):
            self.times.add_column(name, justify="left" if name in ("after", "which") else "right")

    def run(self) -> None:
        """Start, idle, work, look at the admin, kill, restart."""
        from sqlqueue.log.groups import register

        for topic, group in topics_and_groups(self.arguments.groups):
            register(LOG, group, topic)
        try:
            began = time.monotonic()
            for _ in range(self.arguments.processes):
                self.hosts.append(self.start())
                if not self.arguments.at_once:
                    self.started(len(self.hosts) * self.each)
            self.started(len(self.hosts) * self.each)
            print(f"{len(self.hosts) * self.each} subscribers after {time.monotonic() - began:.1f} s", flush=True)
            self.balanced("the start", began, time.monotonic())
            self.loaded("Idle", self.idle())
            self.loaded(f"{self.arguments.rate} messages/s", self.busy())
            self.admin()
            self.kill()
            if not self.arguments.no_restart:
                self.restart()
        finally:
            for host in self.hosts:
                host.kill()
                host.wait()
        Console(width=160).print(self.times)
        Console().print(f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.")

    def start(self) -> "subprocess.Popen[bytes]":
        """Start a process with its subscribers."""
        words = [f"--subscribers={self.each}", f"--groups={self.arguments.groups}"]
        command = [sys.executable, "-m", "tests.benchmarks.fleet.host", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)

    def balanced(self, after: str, began: float, last_end: float | None = None) -> None:
        """Wait for a balance, and add its row."""
        wanted = len(self.hosts) * self.each
        deadline = time.monotonic() + ENDS
        while (why := self.uneven(wanted)) and time.monotonic() < deadline:
            time.sleep(0.2)
        ended, found = time.monotonic(), self.meter.read()
        kind, load = found.slowest()
        late = "" if last_end is None else f"{ended - last_end:.1f}"
        figures = (str(found.lock_waits), str(found.waited), str(found.deadlocks), f"{load.slowest:.0f}", kind)
        self.times.add_row(after, f"{ended - began:.1f}" + (f" ({why})" if why else ""), late, *figures)
        print(f"{after}: {ended - began:.1f} s {late} {figures} {why} {load.text[:300]}", flush=True)
        show(f"Until the balance after {after}", found)
        self.meter.reset()

    def uneven(self, subscribers: int) -> str:
        """Say why the leases are not shared evenly among so many subscribers; "" if they are."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(ALIVE)
            alive = cursor.fetchone()[0]
            cursor.execute(HELD)
            rows = cursor.fetchall()
        if alive != subscribers:
            return f"{alive} subscribers"
        held: dict[tuple[str, str], dict[str, int]] = {}
        for topic, group, holder, count, ended in rows:
            if not holder or ended:
                return f"{count} of {topic}, {group} have no owner"
            held.setdefault((topic, group), {})[holder] = count
        for of_group in held.values():
            quotient, remainder = divmod(sum(of_group.values()), subscribers)
            most = quotient + (remainder > 0)
            if not set(of_group.values()) <= {quotient, most} or (quotient and len(of_group) != subscribers):
                return f"from {min(of_group.values())} to {max(of_group.values())} each"
        return ""

    def idle(self) -> None:
        """Let the fleet wait."""
        self.meter.reset()
        time.sleep(self.arguments.seconds)

    def busy(self) -> None:
        """Publish to all topics in turn."""
        from sqlqueue import publish

        self.meter.reset()
        topics = sorted({topic for topic, _ in topics_and_groups(self.arguments.groups)})
        began, number = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < self.arguments.seconds:
            if number < elapsed * self.arguments.rate:
                publish(topics[number % len(topics)], {"number": number}, key=f"k{number}")
                number += 1
            else:
                time.sleep(0.001)
        print(f"{number} messages published in {elapsed:.1f} s", flush=True)

    def loaded(self, title: str, _: None) -> None:
        """Show what the server was asked since the last reset."""
        show(title, self.meter.read())
        self.meter.reset()

    def admin(self) -> None:
        """Show what the pages cost."""
        from tests.benchmarks.fleet.pages import measured

        table = Table(title="The admin")
        for name in ("page", "statements", "rows read", "ms", "KiB"):
            table.add_column(name, justify="left" if name == "page" else "right")
        for page, statements, rows, milliseconds, size in measured():
            table.add_row(page, str(statements), f"{rows:,}", f"{milliseconds:,.0f}", f"{size / 1024:,.0f}")
        Console().print(table)

    def kill(self) -> None:
        """Kill 30 % of the subscribers at once."""
        from django.db import connection

        count = round(0.3 * len(self.hosts))
        dead, self.hosts = self.hosts[:count], self.hosts[count:]
        self.meter.reset()
        for host in dead:
            host.kill()
        for host in dead:
            host.wait()
        began = time.monotonic()
        pids = tuple(host.pid for host in dead)
        with connection.cursor() as cursor:
            text = "SELECT DISTINCT subscriber FROM sqlqueue_subscriber_heartbeat watched WHERE pid IN %s"
            cursor.execute(text, [pids])
            holders = [holder for (holder,) in cursor.fetchall()]
            cursor.execute(LAST_END.replace("{holders}", ", ".join(["%s"] * len(holders))), holders)
            seconds = float(cursor.fetchone()[0])
        self.balanced(f"the death of {count * self.each}", began, began + seconds)

    def restart(self) -> None:
        """Restart one process after the other: each stops in order, then another one starts."""
        self.meter.reset()
        began = time.monotonic()
        for number, host in enumerate(self.hosts):
            host.send_signal(signal.SIGTERM)
            host.wait()
            self.hosts[number] = self.start()
            self.started(len(self.hosts) * self.each)
        print(f"restarted in {time.monotonic() - began:.1f} s", flush=True)
        self.balanced(f"a restart of {len(self.hosts)} processes, one by one", began, time.monotonic())

    def started(self, subscribers: int) -> None:
        """Wait until so many subscribers are alive."""
        from django.db import connection

        deadline = time.monotonic() + ENDS
        alive = 0
        while alive != subscribers and time.monotonic() < deadline:
            time.sleep(0.2)
            with connection.cursor() as cursor:
                cursor.execute(ALIVE)
                alive = cursor.fetchone()[0]


def show(title: str, found) -> None:
    """Show statements by kind."""
    seconds = found.seconds
    total = sum(load.count for load in found.loads.values())
    table = Table(
        title=f"{title}: {total / seconds:,.0f} statements/s in {seconds:.0f} s; {found.lock_waits} lock waits"
    )
    for name in (
        "statements",
        "a second",
        "rows examined each",
        "rows examined a second",
        "rows changed a second",
        "ms each",
        "slowest, ms",
    ):
        table.add_column(name, justify="left" if name == "statements" else "right")
    for kind, load in sorted(found.loads.items(), key=lambda one: -one[1].examined):
        table.add_row(
            kind,
            f"{load.count / seconds:,.1f}",
            f"{load.examined / load.count:,.0f}",
            f"{load.examined / seconds:,.0f}",
            f"{load.changed / seconds:,.0f}",
            f"{load.time / load.count:,.2f}",
            f"{load.slowest:,.0f}",
        )
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
