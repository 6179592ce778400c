"""Many subscribers in several processes, of which one is killed, and another one is stopped: all partitions have a
living owner again, in even shares."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sqlqueue import publish
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log.groups import register
from sqlqueue.models import PartitionLease, SubscriberHeartbeat
from tests.benchmarks.fleet.host import topics_and_groups
from tests.logs import LOG
from tests.processes import ROOT, environment, wait_until
from tests.progress import unread_streams

pytestmark = pytest.mark.django_db(transaction=True)

EACH, GROUPS, PARTITIONS = 3, 2, 22
OPTIONS = {
    "PARTITIONS": PARTITIONS,
    "LEASE_DURATION": 3.0,
    "HEARTBEAT_INTERVAL": 1.0,
    "BALANCE_INTERVAL": 0.5,
    "SHUTDOWN_TIMEOUT": 5.0,
}


@pytest.fixture
def start(settings, tmp_path: Path) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Start a process with so many subscribers as EACH says; all are killed in the end."""
    settings.SQLQUEUE = OPTIONS
    for topic, group in topics_and_groups(GROUPS):
        register(LOG, group, topic)
    started: list[subprocess.Popen[bytes]] = []

    def one() -> "subprocess.Popen[bytes]":
        words = ["-m", "tests.benchmarks.fleet.host", f"--subscribers={EACH}", f"--groups={GROUPS}"]
        with (tmp_path / "log").open("ab") as log:
            env = environment(SQLQUEUE=json.dumps(OPTIONS))
            started.append(subprocess.Popen([sys.executable, *words], env=env, cwd=ROOT, stdout=log, stderr=log))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()


def even(processes: int) -> bool:
    """Whether each of so many processes' subscribers holds its share of every group, and no other one anything."""
    alive = set(SubscriberHeartbeat.objects.alive().values_list("subscriber", flat=True))
    held = PartitionLease.objects.filter(valid_until__gt=DatabaseNow()).exclude(holder="")
    counts = Counter(held.values_list("topic", "consumer_group", "holder"))
    quotient, remainder = divmod(PARTITIONS, processes * EACH)
    wanted = [quotient] * (processes * EACH - remainder) + [quotient + 1] * remainder
    return len(alive) == processes * EACH and all(
        sorted(counts[topic, group, name] for name in alive) == wanted for topic, group in topics_and_groups(GROUPS)
    )


@pytest.mark.database("mariadb", "postgresql")
def test_after_deaths_and_restarts_all_partitions_have_living_owners_in_even_shares(
    start: Callable[[], "subprocess.Popen[bytes]"],
) -> None:
    first, second, _third = start(), start(), start()
    wait_until(lambda: even(3))
    first.kill()
    first.wait()
    wait_until(lambda: even(2))
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 0
    start()
    wait_until(lambda: even(2))
    topics = sorted({topic for topic, _ in topics_and_groups(GROUPS)})
    for number in range(60):
        publish(topics[number % len(topics)], number, key=f"{number}")
    wait_until(lambda: not any(unread_streams(LOG, group, topic) for topic, group in topics_and_groups(GROUPS)))
