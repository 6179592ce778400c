"""PostgreSQL with a schema for each tenant: each connection's search_path says which tables the queue's are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import ProgrammingError, connection

from sqlqueue import publish
from sqlqueue.models import Message
from tests.management.running import run

pytestmark = [pytest.mark.database("postgresql"), pytest.mark.session]


@contextmanager
def path(schemas: str) -> Iterator[None]:
    """Have this search_path, and the server's own afterwards."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {schemas}")
        yield
        cursor.execute("RESET search_path")


@pytest.fixture
def tenant(transactional_db: None) -> Iterator[str]:
    """A schema without tables."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        yield "tenant"
        cursor.execute("DROP SCHEMA tenant CASCADE")


def test_what_a_tenant_publishes_is_in_the_queues_schema(tenant: str) -> None:
    with path(f"{tenant}, public"):
        publish("t", "to be seen by all")
    assert [message.payload for message in Message.objects.all()] == ["to be seen by all"]


@pytest.mark.parametrize("topic", ["known", "new"])
def test_a_path_without_the_queues_schema_is_an_error_and_publishes_nothing(tenant: str, topic: str) -> None:
    publish("known", 1)
    with path(tenant), pytest.raises(ProgrammingError, match=r'relation "sqlqueue_.*" does not exist'):
        publish(topic, 2)
    assert Message.objects.count() == 1


def test_w051_a_tenants_own_tables_would_get_messages_that_no_consumer_sees(tenant: str) -> None:
    assert "W051" not in run("check", "--database=default").err
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {tenant}.sqlqueue_message (LIKE public.sqlqueue_message INCLUDING ALL)")
    said = run("check", "--database=default")
    assert said.code == 0
    assert "several schemas have the queue's tables (such as public and tenant)" in said.err
    assert "sqlqueue.W051" in said.err
