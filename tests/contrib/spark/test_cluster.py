"""Spark over several machines: one of two workers is killed in the middle, and nothing is lost, nor there twice.

`make test-cluster` runs this on MariaDB, MySQL and PostgreSQL. SQLite is a file of one machine.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.models import Message, Offset
from tests.consuming import QUICK
from tests.contrib.spark import cluster as clusters
from tests.contrib.spark.archiving import offsets_in
from tests.contrib.spark.cluster import Cluster
from tests.contrib.spark.jobs import ROWS
from tests.processes import ROOT, ManageCommands, environment, wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.database("mariadb", "mysql", "postgresql"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(900),
]

TIMEOUT = 300
PUBLISHED = 15_000  # of which a read makes three tasks: more than two executors have cores


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clusters.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(machines: Cluster, settings: Any) -> Cluster:
    """The cluster, with two workers."""
    settings.SQLQUEUE = {**QUICK, "RETENTION": 0}
    machines.complete()
    return machines


def run(job: str, cluster: Cluster, folder: Path) -> list[int]:
    """Run a job, kill a worker while both are in the middle of a task, and return what the job has found."""
    log = folder / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "tests.contrib.spark.jobs", job, cluster.master, str(folder)]
        driver = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=file, stderr=subprocess.STDOUT)
    try:

        def begun() -> bool:
            assert driver.poll() is None, log.read_text()
            return len(list(folder.glob("begun-*"))) >= clusters.WORKERS

        wait_until(begun, TIMEOUT, log.read_text)
        cluster.kill_a_worker()
        (folder / "go").touch()
        assert driver.wait(TIMEOUT) == 0, log.read_text()
    finally:
        driver.kill()
        driver.wait()
    assert len(list(folder.glob("begun-*"))) > clusters.WORKERS  # a task was run again
    found: list[int] = json.loads((folder / "result").read_text())
    return found


def publish_some() -> dict[int, int]:
    publish_many("t", [NewMessage(n, key=f"k{n % 9}") for n in range(PUBLISHED)])
    return dict.fromkeys(Message.objects.values_list("offset", flat=True), 1)


def test_a_batch_read_has_each_row_once(cluster: Cluster, tmp_path: Path) -> None:
    published = publish_some()
    assert Counter(run("batch", cluster, tmp_path)) == published


def test_a_write_publishes_each_row_once(cluster: Cluster, tmp_path: Path) -> None:
    run("write", cluster, tmp_path)
    ids = Counter(Message.objects.values_list("message_id", flat=True))
    assert ids == {f"id-{number}": 1 for number in range(ROWS)}


def test_a_stream_into_files_has_each_row_once(cluster: Cluster, tmp_path: Path) -> None:
    published = publish_some()
    assert Counter(run("stream", cluster, tmp_path)) == published
    assert set(Offset.objects.filter(consumer_group="lake").values_list("position", flat=True)) == {max(published)}


def test_the_archive_has_each_row_once(cluster: Cluster, tmp_path: Path, manage: ManageCommands) -> None:
    published = publish_some()
    words = [f"--conf={name}={value}" for name, value in clusters.CONF.items()]
    words += [f"--master={cluster.master}", "--segment-rows=1000", "--no-receipts"]
    command = manage("queuearchive", str(tmp_path / "lake"), *words, env={"SQLQUEUE": json.dumps(QUICK)})

    def under_way() -> bool:
        assert command.returncode is None, command.output
        return ArchiveSegment.objects.count() >= 2

    wait_until(under_way, TIMEOUT, lambda: command.output)
    cluster.kill_a_worker()
    assert command.wait(TIMEOUT) == 0, command.output
    assert ArchiveSegment.objects.count() == PUBLISHED // 1_000
    assert offsets_in(tmp_path / "lake") == published
