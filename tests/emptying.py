"""Emptying the test database after a test that commits: the rows go, and what migrations made stays.

Django's own way calls every receiver of post_migrate after each such test: content types and permissions of all models
were looked for anew some thousand times, a fifth of the suite's time.
"""

from typing import Final

from django.core.management.color import no_style
from django.db import connections
from django.test import TransactionTestCase

from sqlqueue.apps import prepare

MADE_BY_MIGRATE: Final = {"django_content_type", "auth_permission"}


def empty(alias: str) -> None:
    """Delete what tests have written, and fill the queue's gate again."""
    connection = connections[alias]
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    emptied = [table for table in tables if table not in MADE_BY_MIGRATE]
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), emptied))
    prepare(using=alias)


def _empty_all(test: TransactionTestCase) -> None:
    for alias in test._databases_names(include_mirrors=False):
        empty(alias)


def use() -> None:
    """Let Django's transactional tests end in this way."""
    TransactionTestCase._fixture_teardown = _empty_all
