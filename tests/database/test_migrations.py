"""Migrations: the sequence of offsets comes through them, and tables of a development version are refused."""

import re
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from sqlqueue import publish, testing
from sqlqueue.checks.databases import check_offsets, check_tables
from sqlqueue.database import online_migration
from sqlqueue.database.sequence import look
from sqlqueue.database.tables import OF_DEVELOPMENT, pending_migrations, remedy
from sqlqueue.models import ConsumerGroup, Message, Offset, PartitionLease, Topic
from tests.consuming import Consuming
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

LAST = 5


class Rebuild(online_migration.Migration):
    """SQLite makes these tables anew for it."""

    operations = [
        migrations.AddField(name, "of_a_test", models.IntegerField(default=7))
        for name in ("message", "receipt", "scheduledmessage")
    ]


def migrate() -> None:
    call_command("migrate", verbosity=0)


class TestSequence:
    @pytest.mark.database("sqlite")
    def test_rebuilt_tables_go_on_where_they_were_though_no_group_knows(self) -> None:
        tables = {"sqlqueue_message": 1000, "sqlqueue_receipt": 2000, "sqlqueue_scheduled_message": 3000}
        LOG.execute("DELETE FROM sqlite_sequence")
        for table, last in tables.items():
            LOG.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", (table, last))
        state, migration = MigrationLoader(connection).project_state(), Rebuild("9999_rebuild", "sqlqueue")
        for change in (migration.apply, migration.unapply):
            with connection.schema_editor(atomic=False) as editor:
                change(state.clone(), editor)
            standing = dict(LOG.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
            assert {table: standing.get(table) for table in tables} == tables

    def test_a_sequence_that_was_reset_before_is_raised(self, consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload), group="g")
        Topic.objects.create(name="t", partitions=1)
        ConsumerGroup.objects.create(consumer_group="g", topic="t")
        place = {"consumer_group": "g", "topic": "t", "partition": 0}
        PartitionLease.objects.create(**place, fencing_token=1)
        last = look(LOG).last_issued + LAST
        Offset.objects.create(**place, position=last, offset_acked=last, claimed_to=last, fencing_token=1)
        reset_sequence()
        assert look(LOG).fell_back
        assert [message.id for message in check_offsets(["default"])] == ["sqlqueue.E024"]
        migrate()
        assert check_offsets(["default"]) == []
        mark = look(LOG)
        assert (mark.known, mark.last_issued) == (last, last)
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
        LOG.execute("DELETE FROM sqlite_sequence WHERE name = 'sqlqueue_message'")
    elif connection.vendor == "mysql":
        LOG.execute("ALTER TABLE sqlqueue_message AUTO_INCREMENT = 1")
    else:
        LOG.execute("SELECT SETVAL(PG_GET_SERIAL_SEQUENCE('sqlqueue_message', 'offset'), 1, FALSE)")


class TestTablesOfADevelopmentVersion:
    @pytest.fixture(autouse=True)
    def made_anew(self) -> Iterator[None]:
        """Leave the tables of this version, whatever becomes of the test."""
        yield
        if pending_migrations(LOG):
            MigrationRecorder(connection).record_unapplied(*OF_DEVELOPMENT)
        migrate()

    def refused(self) -> list[str]:
        """Return the statements with which `migrate` refuses the tables."""
        with pytest.raises(CommandError, match="Nothing was changed") as refusal:
            migrate()
        assert "`python manage.py dbshell --database default`" in str(refusal.value)
        return re.findall(r"(?m)^(.*);$", str(refusal.value))

    def test_that_are_recorded_as_such_are_refused(self) -> None:
        publish("t", 1)
        assert not pending_migrations(LOG)
        assert check_tables(["default"]) == []
        MigrationRecorder(connection).record_applied(*OF_DEVELOPMENT)
        assert self.refused()
        assert Message.objects.count() == 1
        assert pending_migrations(LOG)
        (found,) = check_tables(["default"])
        assert (found.id, found.hint) == ("sqlqueue.E052", remedy(LOG))
        assert check_tables() == []

    def test_that_only_lack_a_column_are_refused_and_made_anew_by_the_statements(self) -> None:
        with connection.schema_editor() as editor:
            editor.execute("ALTER TABLE sqlqueue_activity DROP COLUMN filtered")
        publish("t", 1)
        for statement in self.refused():
            LOG.execute(statement)
        assert not [name for name in connection.introspection.table_names() if name.startswith("sqlqueue")]
        migrate()
        assert publish("t", 1).offset == 1
        assert not pending_migrations(LOG)
