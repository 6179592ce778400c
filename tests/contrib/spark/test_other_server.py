"""Another server than the one for which a read was planned may lack rows: its answers are not used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlqueue import publish_many
from sqlqueue.contrib.spark import plan
from sqlqueue.contrib.spark.options import READ, read
from sqlqueue.contrib.spark.scan import OtherServer, TableScan
from sqlqueue.contrib.spark.stream import of_the_server
from sqlqueue.contrib.spark.tables import MESSAGES
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import LeaseLost
from sqlqueue.models import Message, Offset
from tests.contrib.spark.test_stream import TIMEOUT, Streams, offsets_of
from tests.faults.test_silent_rerouting import pair as pair
from tests.faults.test_silent_rerouting import proxy as proxy
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.lagging import Pair
from tests.servers.private import PrivateServer
from tests.servers.rerouting import ReroutingProxy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]
of_servers = pytest.mark.database("mariadb", "postgresql")


class Task:
    """A read of the log, planned on the present server, which one task is to carry out."""

    def __init__(self) -> None:
        self.server = ServerIdentity(LOG)
        self.options = read({"topic": "t"}, READ, "a batch read")
        (self.portion,) = plan.batch(LOG, self.options, 1, self.server)
        self._scan = TableScan(MESSAGES, MESSAGES.chosen(("offset",)))

    def run(self) -> list[int]:
        """Read over a connection of the task's own."""
        connections["default"].close()
        try:
            batches = list(self._scan.read(LOG, self.portion))
        finally:
            connections["default"].close()
        return sorted(row["offset"] for batch in batches for row in batch.to_pylist())


def clients(proxy: ReroutingProxy) -> int:
    """Return how many connections there are through the proxy."""
    return sum(session.is_alive() for session in proxy._sessions)


@of_servers
def test_a_task_that_is_led_to_a_lagging_replica_fails(
    pair: Pair, proxy: ReroutingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_many("t", range(20))
    pair.replicate()
    publish_many("t", range(20))
    task = Task()
    mine = offsets_of("t")
    assert task.run() == mine
    with monkeypatch.context() as patch:
        select = TableScan._select

        def led_after_its_look(*planned: Any) -> Any:
            found = select(*planned)
            proxy.lead_to(pair.replica.port)
            return found

        patch.setattr(TableScan, "_select", led_after_its_look)
        with pytest.raises(OtherServer):
            task.run()
    with pytest.raises(OtherServer):  # led there before it looks
        task.run()
    wait_until(lambda: clients(proxy) == 0)
    proxy.lead_to(pair.primary.port)
    assert task.run() == mine


@of_servers
def test_what_a_lagging_replica_counts_plans_nothing(pair: Pair, proxy: ReroutingProxy) -> None:
    publish_many("t", range(20))
    pair.replicate()
    publish_many("t", range(20))
    task, highest = Task(), max(offsets_of("t"))
    proxy.lead_to(pair.replica.port)
    with pytest.raises(LeaseLost):
        plan.portions(LOG, task.options, 1, highest, 1, task.server)
    proxy.lead_to(pair.primary.port)


@pytest.fixture
def restarting(database_server: PrivateServer) -> Iterator[Any]:
    def restart() -> None:
        connections.close_all()
        database_server.stop()
        database_server.start()

    return restart


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_batch_that_was_planned_before_a_restart_fails_and_a_new_one_reads(
    spark: SparkSession, restarting: Any
) -> None:
    publish_many("t", range(20))
    frame = spark.read.format("sqlqueue").option("topic", "t").load()
    assert frame.count() == 20
    restarting()
    with pytest.raises(PySparkException, match=r"load\(\) a batch again"):
        frame.count()
    assert spark.read.format("sqlqueue").option("topic", "t").load().count() == 20


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_stream_goes_on_after_a_restart_between_two_batches(
    spark: SparkSession, restarting: Any, tmp_path: Path
) -> None:
    publish_many("flights", range(10))
    streams = Streams(spark, tmp_path)
    query = streams.start(available=False)

    def read_so_far() -> list[int]:
        assert query.exception() is None, query.exception()
        return sorted(offset for batch in streams.batches for offset in batch)

    wait_until(lambda: len(read_so_far()) == 10, TIMEOUT)
    wait_until(lambda: Offset.objects.filter(consumer_group="lake", position__gte=max(read_so_far())).exists(), TIMEOUT)
    restarting()
    publish_many("flights", range(10))
    wait_until(lambda: len(read_so_far()) == 20, TIMEOUT)
    query.stop()
    assert read_so_far() == offsets_of("flights")
    assert Message.objects.count() == 20


@pytest.mark.once
def test_an_error_is_the_servers_by_its_kind_or_its_cause() -> None:
    assert not of_the_server(ValueError("no"))
    assert not of_the_server(LeaseLost("another stream"))
