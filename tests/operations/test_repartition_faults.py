"""The change of a topic's partitions beside stopped processes, emptied and restored databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.database import turning
from sqlqueue.database.insert_sql import ADVISORY, SLOTS
from sqlqueue.database.log import forget_layouts
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.groups import lock_topic, register, revoke, start_all
from sqlqueue.log.layout_changes import under_way
from sqlqueue.log.layouts import epochs
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import ConsumerGroup, Layout, Message, PartitionLease, PublishGate, Topic
from sqlqueue.operations.drop import drop
from sqlqueue.operations.repartition import Repartition, begin
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "orders"


@pytest.fixture(autouse=True)
def topic() -> Topic:
    forget_layouts()
    return Topic.objects.create(name=TOPIC, partitions=4)


def alter(partitions: int) -> None:
    begin(LOG, TOPIC, partitions)
    for _ in Repartition(LOG).run(0.01):
        pass


@pytest.mark.database("postgresql")
def test_a_process_that_was_stopped_puts_no_former_generation_in_force() -> None:
    """It was stopped before the step of a change that others have ended; then the topic was altered again."""
    change = begin(LOG, TOPIC, 6)
    assert change is not None
    stopped = Repartition(LOG)
    for _ in Repartition(LOG).run(0.01):
        pass
    alter(2)
    stopped._at_once(change)
    publish(TOPIC, 1, key="a")
    assert Message.objects.get().partition >= epochs(LOG, TOPIC)[-1].base == 10


def test_a_database_that_was_flushed_takes_messages_of_a_topic_that_had_been_altered() -> None:
    alter(6)
    call_command("flush", interactive=False, verbosity=0)
    forget_topics()
    Topic.objects.create(name=TOPIC, partitions=4)
    for n in range(8):
        publish(TOPIC, n, key=f"k{n}")
    assert set(Message.objects.values_list("partition", flat=True)) <= set(range(4))


@pytest.mark.parametrize("by", ["fill", "recover"])
def test_a_restore_of_the_layouts_alone_gets_its_generation_back(by: str) -> None:
    """The sequence is no table, and logical replication has none; `loaddata` keeps what `migrate` has put there."""
    from sqlqueue.models.publish_gate import fill
    from sqlqueue.operations.recover import recover

    alter(6)
    if connection.vendor == "postgresql":
        turning.put_in_force(LOG, 0)
    else:
        PublishGate.objects.filter(slot__gte=0).delete()
        PublishGate.objects.bulk_create(PublishGate(slot=slot, generation=0) for slot in range(SLOTS))
    forget_layouts()
    {"fill": fill, "recover": recover}[by](LOG)
    publish(TOPIC, 1, key="a")
    assert Message.objects.get().partition >= 4


@pytest.fixture
def least() -> Iterator[None]:
    """Work as a role that may change rows, and nothing else."""
    LOG.execute("CREATE ROLE least")
    LOG.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO least")
    LOG.execute("SET ROLE least")
    yield
    LOG.execute("RESET ROLE")
    LOG.execute("DROP OWNED BY least")
    LOG.execute("DROP ROLE least")


@pytest.mark.database("postgresql")
def test_a_role_that_may_not_change_the_generation_begins_nothing(least: None) -> None:
    """What it had begun it could neither end nor abort."""
    publish(TOPIC, 1, key="a")
    with pytest.raises(ConfigurationError, match="GRANT UPDATE ON SEQUENCE sqlqueue_generation TO"):
        begin(LOG, TOPIC, 6)
    assert under_way(LOG) is None


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_topic_is_not_half_dropped_while_it_is_altered() -> None:
    publish(TOPIC, 1, key="a")
    register(LOG, "g", TOPIC)
    begin(LOG, TOPIC, 6)
    with pytest.raises(ConfigurationError, match="being changed"):
        drop(LOG, TOPIC, unsettled=True)
    assert Message.objects.count() == ConsumerGroup.objects.count() == 1
    assert not Topic.objects.get(name=TOPIC).paused


def test_a_duplicate_asks_nothing_of_the_layouts() -> None:
    alter(6)
    many = [NewMessage(n, key="a", id=f"i{n}") for n in range(3)]
    publish_many(TOPIC, many)
    with CaptureQueriesContext(connection) as queries:
        assert publish_many(TOPIC, many).ignored == 3
    assert not [query["sql"] for query in queries if "sqlqueue_layout" in query["sql"]]


def test_messages_with_ids_that_were_placed_by_a_former_layout_are_inserted_once_more_at_most() -> None:
    """And their transaction, if it is one of their own, is over."""
    publish(TOPIC, 1, key="a")
    alter(6)
    with CaptureQueriesContext(connection) as queries:
        assert publish_many(TOPIC, [NewMessage(n, key="a", id=f"i{n}") for n in range(3)]).created == 3
    assert sum("INSERT INTO" in query["sql"] for query in queries) <= 2
    with transaction.atomic():
        Topic.objects.update(paused=False)


def test_later_epochs_wait_for_a_rewound_group_of_a_topic_that_was_made_again() -> None:
    """Its row has more partitions than its first epoch had."""
    alter(6)
    drop(LOG, TOPIC)
    Topic.objects.create(name=TOPIC, partitions=30)
    forget_topics()
    register(LOG, "g", TOPIC)
    alter(3)
    start_all(LOG, TOPIC)
    leases = PartitionLease.objects.filter(topic=TOPIC, partition__gte=10)
    assert leases.count() == 3
    with transaction.atomic():
        lock_topic(LOG, TOPIC)
        revoke(LOG, "g", TOPIC, 4)
    assert set(leases.values_list("fencing_token", flat=True)) == {1}


@pytest.mark.database("postgresql")
def test_the_generation_is_read_once_the_gate_is_held() -> None:
    """Read before, it could have been replaced, and the alter, which waits for the gate's holders, would not see it."""
    with OpenTransaction() as alone:
        alone.do(lambda: LOG.execute(f"SELECT PG_ADVISORY_XACT_LOCK({ADVISORY}, 0)"))
        with OpenTransaction() as publisher:
            waits = publisher.start(lambda: publish(TOPIC, 1, key="a"))
            blocked = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_until(lambda: LOG.execute(blocked).fetchone())
            put = Layout(topic=TOPIC, generation=7, epoch=1, phase="steady", partitions=2, base=4)
            put.save()
            turning.put_in_force(LOG, 7)
            alone.commit()
            waits.result(60)
            publisher.commit()
    assert Message.objects.get().partition >= 4
