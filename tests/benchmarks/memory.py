"""Measure the memory of a consumer process under heavy messages, and under many that are due at one moment: `python -m
tests.benchmarks.memory`.

Three groups of one process read 10,000 messages of 1 MB, a thousand at a time, so that the log fits on any disk: a
handler, batches of 500, and an async handler, of 16 partitions each. Then a million scheduled messages of 300 bytes are
due at one moment. What is told is the most that the process has had resident, by the kernel.
"""

import argparse
import os
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from sqlqueue.database.log import Log
from tests.benchmarks.databases import NAMES, migrated
from tests.benchmarks.processes import consumer_process
from tests.processes import wait_until

HEAVY = 1_000_000  # bytes of a payload
AT_ONCE = 1_000  # of them in the log
ENDS = 3_600.0  # seconds that the last message is waited for
PAYLOAD = {"filler": "x" * 285}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument("--messages", type=int, default=10_000, help="of 1 MB")
    parser.add_argument("--due", type=int, default=1_000_000, help="messages that are due at one moment")
    arguments = parser.parse_args()
    with migrated(arguments.database, "tests.benchmarks.settings"):
        if arguments.messages:
            told(f"{arguments.messages:,} messages of 1 MB, three groups", *heavy(arguments.messages))
        if arguments.due:
            told(f"{arguments.due:,} messages due at one moment", *due_at_once(arguments.due))


def told(what: str, idle: int, most: int, seconds: float) -> None:
    load = os.getloadavg()[0]
    Console().print(f"{what}: {most:,} MB at most, {idle:,} MB before; {seconds:.0f} s, at a load of {load:.1f}")


def heavy(messages: int) -> tuple[int, int, float]:
    """Return how many MB a process of three groups had resident before, and at most, and how many seconds it took."""
    from sqlqueue import NewMessage, publish, publish_many
    from sqlqueue.conf import settings
    from sqlqueue.log.collect import collect
    from sqlqueue.models import ConsumerGroup
    from sqlqueue.operations.topics import purge
    from tests.progress import unread_streams

    publish("heavy", 0)
    groups = ("default", "batches", "on-the-loop")

    def all_read() -> bool:
        registered = ConsumerGroup.objects.filter(topic="heavy", consumer_group__in=groups).count()
        return registered == len(groups) and not any(
            unread_streams(Log.of(settings.DATABASE), each, "heavy") for each in groups
        )

    with consumer_process("heavy") as process:
        wait_until(all_read, ENDS)
        idle, began = resident(process.pid), time.monotonic()
        for first in range(0, messages, AT_ONCE):
            count = min(AT_ONCE, messages - first)
            publish_many("heavy", (NewMessage("x" * HEAVY, key=f"k{n % 97}") for n in range(count)))
            wait_until(all_read, ENDS)
            purge(Log.of(settings.DATABASE), "heavy")
            collect(Log.of(settings.DATABASE))
        return idle, resident(process.pid), time.monotonic() - began


def due_at_once(messages: int) -> tuple[int, int, float]:
    """The same of a process that moves so many scheduled messages into the log, and handles them."""
    from datetime import timedelta

    from sqlqueue import NewMessage, publish, publish_many
    from sqlqueue.conf import settings
    from sqlqueue.models import ConsumerGroup, ScheduledMessage
    from tests.progress import unread_streams

    publish("due-at-once", 0)
    later = timedelta(days=1)
    publish_many("due-at-once", (NewMessage(PAYLOAD, key=f"k{n % 997}", delay=later) for n in range(messages)))

    def log_is_read() -> bool:
        registered = ConsumerGroup.objects.filter(topic="due-at-once").exists()
        return registered and not unread_streams(Log.of(settings.DATABASE), "default", "due-at-once")

    def all_read() -> bool:
        return not ScheduledMessage.objects.filter(topic="due-at-once").exists() and log_is_read()

    with consumer_process("due-at-once") as process:
        wait_until(log_is_read, ENDS)
        idle, began = resident(process.pid), time.monotonic()
        Log.of(settings.DATABASE).execute("UPDATE sqlqueue_scheduled_message SET due_at = {now}")
        wait_until(all_read, ENDS)
        return idle, resident(process.pid), time.monotonic() - began


def resident(pid: int) -> int:
    """Return how many MB a process has had resident at most; its threads share them."""
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) // 1_000
    raise RuntimeError(f"process {pid} has ended, or this is no Linux")


if __name__ == "__main__":
    main()
