"""Several writable nodes of Galera, on real ones: a change of the named server loses nothing."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections, transaction
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from sqlqueue import publish
from sqlqueue.database import writer
from sqlqueue.database.log import Log, forget_layouts
from sqlqueue.database.server_checks import findings
from sqlqueue.database.transactions import aside
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Layout, Message, ScheduledMessage
from tests.database.test_cluster import alias
from tests.processes import wait_until
from tests.servers import galera
from tests.soak.topologies.haproxy import HAProxy

pytestmark = [
    pytest.mark.database("mariadb"),
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(galera.missing_for_several()), reason=galera.missing_for_several()),
]
BESIDE = "node_a_beside"
BUSY = "CREATE TABLE busy (id INTEGER PRIMARY KEY)"
KEEP_BUSY = "INSERT INTO busy SELECT seq FROM seq_1_to_1000000"  # some seconds for each node that applies it


@pytest.fixture
def nodes(django_db_blocker: DjangoDbBlocker) -> Iterator[tuple[str, str]]:
    """The aliases of two nodes of a cluster that has the queue's tables; the first one is named. BESIDE is another
    connection to that."""
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        first, second = stack.enter_context(galera.cluster(2))
        a, b = stack.enter_context(alias("node_a", first)), stack.enter_context(alias("node_b", second))
        stack.enter_context(alias(BESIDE, first))
        stack.enter_context(override_settings(DATABASE_ROUTERS=[]))
        call_command("migrate", database=a, verbosity=0)
        Log.of(a).execute(BUSY)
        writer.take_over(Log.of(a), writer.writer_state(Log.of(a)))
        assert writer.open_log(Log.of(a))
        wait_until(lambda: writer.writer_state(Log.of(b)).writer == writer.writer_state(Log.of(a)).here)
        yield a, b


def publish_on(node: str, payload: object) -> int | None:
    with override_settings(SQLQUEUE={"DATABASE": node}):
        return publish("t", payload, key="k").offset


def visible(node: str) -> list[object]:
    return list(Message.objects.using(node).order_by("offset").values_list("payload", flat=True))


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_what_the_former_server_commits_after_the_change_is_refused(nodes: tuple[str, str], isolation: str) -> None:
    former, new = nodes
    Log.of(former).execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    publish_on(former, "before")

    def publish_over_the_change() -> None:
        with transaction.atomic(using=former):
            publish_on(former, "too late")
            publish_on(BESIDE, "with a higher offset")
            Log.of(new).execute(KEEP_BUSY)  # so that the former one does not hear of the change at once
            assert writer.take_over(Log.of(new), writer.writer_state(Log.of(new)))
            assert writer.open_log(Log.of(new))
            assert visible(new) == ["before", "with a higher offset"]

    with pytest.raises(OperationalError) as raised:
        publish_over_the_change()
    assert raised.value.args[0] == 1213
    publish_on(new, "after")
    wait_until(lambda: "after" in visible(former))
    assert publish_on(former, "behind") is None
    wait_until(lambda: ScheduledMessage.objects.using(new).exists())
    assert visible(former) == visible(new) == ["before", "with a higher offset", "after"]
    move_due(Log.of(new))
    assert visible(new)[-1] == "behind"


def test_what_is_published_on_both_nodes_enters_the_log_through_the_named_one(nodes: tuple[str, str]) -> None:
    a, b = nodes
    assert [found.id for found in findings(Log.of(b))] == ["sqlqueue.W014"]
    publish_on(a, 1)
    assert publish_on(b, 2) is None
    with transaction.atomic(using=b):
        publish_on(b, 3)
    assert move_due(Log.of(b)) == 0
    wait_until(lambda: ScheduledMessage.objects.using(a).count() == 2)
    assert publish_on(a, 4) is None  # behind them
    while move_due(Log.of(a)):
        pass
    wait_until(lambda: visible(b) == [1, 2, 3, 4])


def test_a_publisher_that_goes_from_node_to_node_keeps_the_order_of_its_key(nodes: tuple[str, str]) -> None:
    a, b = nodes
    for node in nodes:
        Log.of(node).execute("SET SESSION wsrep_sync_wait = 7")
    for number in range(60):
        publish_on(nodes[number // 2 % 2], number)
        if number % 7 == 0:
            move_due(Log.of(a))
    while move_due(Log.of(a)):
        pass
    assert visible(b) == list(range(60))


def test_an_id_counts_once_on_all_nodes(nodes: tuple[str, str]) -> None:
    a, b = nodes
    for node in nodes:
        Log.of(node).execute("SET SESSION wsrep_sync_wait = 7")
    for number in range(30):
        for node in (nodes[number % 2], nodes[1 - number % 2]):
            with override_settings(SQLQUEUE={"DATABASE": node}):
                publish("t", number, key="k", id=str(number))
        if number % 5 == 0:
            move_due(Log.of(a))
    while move_due(Log.of(a)):
        pass
    assert visible(b) == list(range(30))


@pytest.fixture
def balanced(nodes: tuple[str, str], tmp_path: Path) -> Iterator[str]:
    """An alias whose connections lead to both nodes in turn, and to the named one to begin with."""
    a, _ = nodes
    ports = {node: f"127.0.0.1:{connections[node].settings_dict['PORT']}" for node in nodes}
    proxy = HAProxy(tmp_path, ports)
    proxy.start()
    try:
        proxy.route(*nodes)
        with alias("balanced", proxy) as one:
            while writer.writer_state(Log.of(one)).here != writer.writer_state(Log.of(a)).here:
                connections[one].close()
            yield one
    finally:
        proxy.close()


@contextmanager
def behind(node: str) -> Iterator[None]:
    """Let a node carry out nothing that others commit, without holding them up."""
    Log.of(node).execute("SET GLOBAL wsrep_desync = ON")
    Log.of(node).execute("FLUSH TABLES WITH READ LOCK")
    try:
        yield
    finally:
        Log.of(node).execute("UNLOCK TABLES")
        Log.of(node).execute("SET GLOBAL wsrep_desync = OFF")


@pytest.mark.django_db(transaction=True)  # Django asks the default database about inserts
def test_what_a_transaction_learns_beside_itself_is_of_its_own_node(nodes: tuple[str, str], balanced: str) -> None:
    """The other one may not have heard of a change yet: it would give the former partitions."""
    a, b = nodes
    publish_on(a, "before")
    wait_until(lambda: visible(b) == ["before"])
    with behind(b):
        with override_settings(SQLQUEUE={"DATABASE": a}):
            call_command("queuetopic", "alter", "t", "--partitions", "3", "--no-input", verbosity=0)
        for number in range(6):
            forget_layouts()
            with transaction.atomic(using=balanced):
                publish_on(balanced, number)
        assert not Layout.objects.using(b).exists(), "the other node was not behind"
    found = set(Message.objects.using(a).exclude(payload="before").values_list("partition", flat=True))
    first = Layout.objects.using(a).latest("generation").base
    assert found <= {first, first + 1, first + 2}


def test_a_transaction_says_so_where_no_second_connection_leads_to_its_node(nodes: tuple[str, str]) -> None:
    a, b = nodes
    with transaction.atomic(using=a):
        Log.of(a).execute("SELECT 1")
        connections[a].settings_dict["PORT"] = connections[b].settings_dict["PORT"]
        with pytest.raises(OperationalError, match="no second connection"), aside(Log.of(a)):
            pass
