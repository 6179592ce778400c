"""Emptying the test database after a test that commits: the rows go, and what migrations made stays.

Django's own way calls every receiver of post_migrate after each such test: content types and permissions of all models
were looked for anew some thousand times, a fifth of the suite's time; the gate's 260 rows were written as often.
"""

from typing import Final

from django.core.management.color import no_style
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

from sqlqueue.database.insert_sql import HORIZON
from sqlqueue.database.log import Log
from sqlqueue.database.turning import put_in_force
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import Layout, PublishGate
from sqlqueue.models.publish_gate import fill

GATE: Final = PublishGate._meta.db_table
MADE_BY_MIGRATE: Final = {"django_content_type", "auth_permission", GATE}


def empty(alias: str) -> None:
    """Delete what tests have written, and add what the gate may lack. The sequence of offsets goes on: nothing here
    restarts it, and no table knows an offset any more."""
    connection = connections[alias]
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    emptied = [table for table in tables if table not in MADE_BY_MIGRATE]
    if connection.vendor != "postgresql":  # which truncates a table only together with those that refer to it
        emptied = filled(connection, emptied)
    altered = "sqlqueue_layout" in tables and Layout.objects.using(alias).exists()
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), emptied))
    forget_topics()
    if altered:  # back to the first generation
        PublishGate.objects.using(alias).filter(slot__gte=0).delete()
        if connection.vendor == "postgresql":
            put_in_force(Log.of(alias), 0)
    if GATE in tables:
        PublishGate.objects.using(alias).filter(slot=HORIZON, value__gt=0).update(value=0)
        fill(Log.of(alias))


def filled(connection: BaseDatabaseWrapper, tables: list[str]) -> list[str]:
    """Return which of these tables have rows, by one statement: most of them have none after most tests."""
    questions = [f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {table})" for table in tables]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(questions))
        return [table for (table,) in cursor.fetchall()]


def _empty_all(test: TransactionTestCase) -> None:
    for alias in test._databases_names(include_mirrors=False):
        empty(alias)


def use() -> None:
    """Let Django's transactional tests end in this way."""
    TransactionTestCase._fixture_teardown = _empty_all
