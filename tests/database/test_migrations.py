"""Migrations: from every released state, with data in the tables and with a log that was emptied."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from sqlqueue import publish, testing
from sqlqueue.checks import check_offsets
from sqlqueue.database.dialects import execute
from sqlqueue.database.sequence import look
from sqlqueue.models import Message, PartitionLease
from tests.consuming import Consuming

pytestmark = pytest.mark.django_db(transaction=True)

RELEASED = sorted(name for app, name in MigrationLoader(None).graph.nodes if app == "sqlqueue")
HANDLED = 5


def migrate(name: str = "") -> None:
    call_command("migrate", "sqlqueue", *([name] if name else []), verbosity=0)


@pytest.fixture
def at() -> Iterator[Callable[[str], None]]:
    """Make the tables afresh, as a migration left them."""

    def go(name: str) -> None:
        migrate("zero")
        migrate(name)

    yield go
    migrate()


def state(name: str) -> Any:
    """Return the models as they were then."""
    return MigrationLoader(connection).project_state([("sqlqueue", name)]).apps


def handled(name: str) -> None:
    """Leave five messages that a group has handled, and one that failed, with the tables of that time."""
    models = state(name)

    def create(model: str, **values: Any) -> None:
        models.get_model("sqlqueue", model).objects.create(**values)

    place = {"consumer_group": "g", "topic": "t", "partition": 0}
    create("Topic", name="t", partitions=1)
    create("ConsumerGroup", consumer_group="g", topic="t")
    create("PartitionLease", **place, fencing_token=1)
    for number in range(HANDLED):
        create("Message", topic="t", partition=0, message_id=str(number), payload={"number": number})
    last = models.get_model("sqlqueue", "Message").objects.latest("offset").offset
    create("Offset", **place, position=last, offset_acked=last, claimed_to=last, fencing_token=1)


def columns() -> list[tuple[str, str, str]]:
    """Return (table, column, character set) of the queue's texts."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name, character_set_name FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND table_name LIKE 'sqlqueue%%' AND character_set_name IS NOT NULL"
        )
        return list(cursor.fetchall())


class TestFormerOwners:
    """A process of version 0.1 knows of no ranges: it would take what waits in one for done."""

    # The statements by which it renews its leases, and settles: from its source.
    RENEW = "UPDATE sqlqueue_partition_lease SET expires_at = {later} WHERE holder = %s"
    SETTLE = "UPDATE sqlqueue_offset SET position = %s WHERE id = %s AND fencing_token = %s"

    @pytest.mark.parametrize("name", [name for name in RELEASED if name < "0006"])
    def test_one_that_was_not_stopped_fails_loudly_and_settles_nothing(
        self, name: str, at: Callable[[str], None]
    ) -> None:
        at(name)
        handled(name)
        models = state(name)
        leases, offsets = (models.get_model("sqlqueue", each).objects for each in ("PartitionLease", "Offset"))
        leases.update(holder="former", expires_at=timezone.now() + timedelta(hours=1))
        place, token = offsets.get().pk, offsets.get().fencing_token
        assert execute("default", self.RENEW, (60_000_000, "former")).rowcount == 1
        assert execute("default", self.SETTLE, (HANDLED, place, token)).rowcount == 1
        migrate()
        with pytest.raises(DatabaseError, match="expires_at"):
            execute("default", self.RENEW, (60_000_000, "former"))
        assert execute("default", self.SETTLE, (HANDLED + 1, place, token)).rowcount == 0
        lease = PartitionLease.objects.get()
        assert (lease.holder, lease.valid_until) == ("", None)
        assert lease.fencing_token > token

    def test_what_it_had_in_hand_is_recovered(self, at: Callable[[str], None], consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload["number"]), group="g")
        name = "0005_overview"
        at(name)
        handled(name)
        models = state(name)
        first = models.get_model("sqlqueue", "Message").objects.earliest("offset").offset
        # It holds the lease, has acked the first message, and has claimed them all.
        models.get_model("sqlqueue", "Offset").objects.update(position=first, offset_acked=first)
        models.get_model("sqlqueue", "PartitionLease").objects.update(
            holder="former", expires_at=timezone.now() + timedelta(hours=1)
        )
        migrate()
        testing.drain()
        assert sorted(seen) == list(range(1, HANDLED))


class TestSequence:
    @pytest.mark.parametrize("emptied", [False, True], ids=["with messages", "emptied"])
    @pytest.mark.parametrize("name", RELEASED)
    def test_what_is_published_after_a_migration_is_delivered(
        self, name: str, emptied: bool, at: Callable[[str], None], consuming: Consuming
    ) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload["number"]), group="g")
        at(name)
        handled(name)
        if emptied:  # by collection
            state(name).get_model("sqlqueue", "Message").objects.all().delete()
        migrate()
        for number in range(HANDLED, 2 * HANDLED):
            publish("t", {"number": number})
        testing.drain()
        assert sorted(seen) == list(range(HANDLED, 2 * HANDLED))
        assert not look("default").fell_back

    @pytest.mark.database("sqlite")
    @pytest.mark.parametrize("table", ["sqlqueue_message", "sqlqueue_receipt", "sqlqueue_scheduled_message"])
    @pytest.mark.parametrize("name", RELEASED)
    def test_a_rebuilt_table_goes_on_where_it_was_though_no_group_knows(
        self, name: str, table: str, at: Callable[[str], None]
    ) -> None:
        at(name)
        execute("default", "DELETE FROM sqlite_sequence WHERE name = %s", (table,))
        execute("default", "INSERT INTO sqlite_sequence (name, seq) VALUES (%s, 1000)", (table,))
        migrate()
        migrate(name)  # and back
        assert execute("default", "SELECT seq FROM sqlite_sequence WHERE name = %s", (table,)).fetchall() == [(1000,)]

    def test_a_sequence_that_was_reset_before_is_raised(self, at: Callable[[str], None], consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload), group="g")
        at("0005_overview")
        handled("0005_overview")
        state("0005_overview").get_model("sqlqueue", "Message").objects.all().delete()
        reset_sequence()
        assert look("default").fell_back
        assert [message.id for message in check_offsets(["default"])] == ["sqlqueue.E024"]
        migrate()
        assert check_offsets(["default"]) == []
        mark = look("default")
        assert (mark.known, mark.handed_out) == (HANDLED, HANDLED)
        publish("t", "afterwards")
        testing.drain()
        assert seen == ["afterwards"]

    def test_a_sequence_that_is_ahead_stays_where_it_is(self) -> None:
        publish("t", 1)
        last = Message.objects.latest("offset").offset
        Message.objects.all().delete()
        migrate()
        published = publish("t", 2).offset
        assert published
        assert published > last


def reset_sequence() -> None:
    """Let the sequence of the empty log begin anew, as a restore without it does."""
    if connection.vendor == "sqlite":
        execute("default", "DELETE FROM sqlite_sequence WHERE name = 'sqlqueue_message'")
    elif connection.vendor == "mysql":
        execute("default", "ALTER TABLE sqlqueue_message AUTO_INCREMENT = 1")
    else:
        execute("default", "SELECT SETVAL(PG_GET_SERIAL_SEQUENCE('sqlqueue_message', 'offset'), 1, FALSE)")
