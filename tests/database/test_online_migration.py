"""A migration of a queue that is in use: publishers do not wait behind it, and what was in its way is named."""

import importlib
import pkgutil
import threading
import time
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import connection, connections, models
from django.db.migrations import AddField
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from sqlqueue import migrations, publish
from sqlqueue.database import lock_timeouts, online_migration
from sqlqueue.database.tables import OF_DEVELOPMENT
from sqlqueue.models import Message
from tests.transactions import OpenTransaction

NEW_TABLES_ONLY = {"0001_initial"}
COLUMN = "of_a_test"


class AddColumn(online_migration.Migration):
    operations = [AddField("message", COLUMN, models.IntegerField(null=True))]


def migrate(*, back: bool = False) -> None:
    state = MigrationLoader(connection).project_state()
    migration = AddColumn("9999_column", "sqlqueue")
    with connection.schema_editor(atomic=migration.atomic) as editor:
        (migration.unapply if back else migration.apply)(state, editor)


def columns() -> set[str]:
    with connection.cursor() as cursor:
        return {column.name for column in connection.introspection.get_table_description(cursor, "sqlqueue_message")}


@pytest.mark.django_db(transaction=True)
@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_publishers_do_not_wait_behind_a_migration_that_waits_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_timeouts, "WAIT", 1)
    monkeypatch.setattr(lock_timeouts, "TRIES", 2)
    publish("t", 0)
    waits: list[float] = []
    over = threading.Event()

    def go_on_publishing() -> None:
        while not over.is_set():
            began = time.monotonic()
            publish("t", 1)
            waits.append(time.monotonic() - began)
        connections.close_all()

    with OpenTransaction() as reader:
        reader.do(Message.objects.count)
        publisher = threading.Thread(target=go_on_publishing)
        publisher.start()
        try:
            with pytest.raises(CommandError, match="migrate again"):
                migrate()
        finally:
            over.set()
            publisher.join()
    assert len(waits) > 2
    assert max(waits) < 10.0
    assert COLUMN not in columns()
    migrate()
    assert COLUMN in columns()
    migrate(back=True)
    assert COLUMN not in columns()


@pytest.mark.django_db(transaction=True)
@pytest.mark.database("mariadb", "mysql")
def test_the_sessions_own_lock_timeout_comes_back_after_a_migration() -> None:
    def lock_timeout() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.lock_wait_timeout")
            return int(cursor.fetchone()[0])

    before = lock_timeout()
    migrate()
    migrate(back=True)
    assert lock_timeout() == before > lock_timeouts.WAIT


def test_every_migration_of_tables_that_are_in_use_waits_briefly() -> None:
    names = {module.name for module in pkgutil.iter_modules(migrations.__path__)} - NEW_TABLES_ONLY
    assert OF_DEVELOPMENT[1] not in names
    for name in names:
        migration = importlib.import_module(f"sqlqueue.migrations.{name}").Migration
        assert issubclass(migration, online_migration.Migration), f"{name}: derive it from online_migration.Migration"


@pytest.mark.django_db(transaction=True)
def test_on_another_database_than_the_queues_no_table_is_looked_for(settings: Any) -> None:
    """`migrate` runs there, too: of the project's own tables."""
    settings.SQLQUEUE = {"DATABASE": "queue"}
    settings.DATABASE_ROUTERS = ["sqlqueue.database.router.Router"]
    loader, seen = MigrationLoader(connection), []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(f"{sql} {params}")
        return execute(sql, params, many, context)

    plan = loader.graph.forwards_plan(loader.graph.leaf_nodes("sqlqueue")[0])
    state = ProjectState(real_apps=loader.unmigrated_apps)
    with connection.execute_wrapper(note):
        for key in plan:
            migration = loader.graph.nodes[key]
            with connection.schema_editor(atomic=migration.atomic) as editor:
                state = migration.apply(state, editor)
    assert plan
    assert not [sql for sql in seen if "sqlqueue_" in sql and "sqlite_" not in sql]
