"""IndexHeader: a project indexes a header of the messages, and everything else goes on as before."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.utils import NotSupportedError
from django.test import Client
from django.urls import reverse

from sqlqueue import ConfigurationError, IndexHeader, NewMessage, publish, publish_many
from sqlqueue.database import index_header, online_migration
from sqlqueue.database.index_header import LENGTH, find, indexed_headers
from sqlqueue.models import Message
from tests.database.plans import Recorder, plan_of
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

HIGHEST = 2**63 - 1


class Rebuild(online_migration.Migration):
    """Of the library: SQLite makes the table anew for it."""

    operations = [
        migrations.AddField("message", "of_a_test", models.IntegerField(default=7)),
        migrations.AlterField("message", "priority", models.IntegerField(db_default=0)),
    ]


def run(migration: migrations.Migration, *, back: bool = False, atomic: bool = False) -> None:
    state = MigrationLoader(connection).project_state()
    with connection.schema_editor(atomic=atomic) as editor:
        (migration.unapply if back else migration.apply)(state, editor)


def of_the_project(name: str) -> migrations.Migration:
    made = migrations.Migration("0001_header", "shop")
    made.operations = [IndexHeader(name)]
    made.atomic = False
    return made


@contextmanager
def indexed(name: str) -> Iterator[None]:
    run(of_the_project(name))
    try:
        yield
    finally:
        run(of_the_project(name), back=True)


def shape() -> tuple[set[str], list[str]]:
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "sqlqueue_message")
        constraints = connection.introspection.get_constraints(cursor, "sqlqueue_message")
    return {column.name for column in columns}, sorted(constraints)


def offsets_of(name: str, value: str) -> list[int]:
    return find(LOG, name, value, "t", 100, 0, HIGHEST)


def offsets(html: str) -> list[int]:
    return [int(offset) for offset in re.findall(r'name="_selected_action" value="(\d+)"', html)]


def of(tenant: Any, **more: Any) -> int:
    published = publish("t", {}, headers={"tenant_id": tenant, **more}).offset
    assert published is not None
    return published


def test_it_is_made_over_what_is_there_and_taken_back() -> None:
    before = shape()
    first, _, third = of("a"), of("b"), of("a")
    publish("t", {})  # without headers
    publish("other", {}, headers={"tenant_id": "a"})
    with indexed("tenant_id"):
        assert indexed_headers(LOG) == ["tenant_id"]
        fifth = of("a")
        publish_many("t", [NewMessage(n, headers={"tenant_id": "c"}) for n in range(10)])
        assert offsets_of("tenant_id", "a") == [fifth, third, first]
        assert find(LOG, "tenant_id", "a", "t", 1, 0, fifth - 1) == [third]
        assert len(offsets_of("tenant_id", "c")) == 10
        run(of_the_project("tenant_id"))  # again: there is nothing to do
        Message.objects.filter(offset=first).delete()
        assert offsets_of("tenant_id", "a") == [fifth, third]
    assert indexed_headers(LOG) == []
    assert shape() == before


def test_no_header_is_refused_because_of_an_index() -> None:
    long = "x" * 5000
    values = [long, "x" * LENGTH, 7, True, None, {"a": 1}, [1], "Ä😀", "a ", "A", 'q"\\', "\ud800"]
    with indexed("tenant_id"), indexed("Odd-1_Name"):
        found = {}
        for number, value in enumerate(values):
            try:
                found[number] = publish("t", {}, headers={"tenant_id": value, "Odd-1_Name": value}).offset
            except Exception as error:  # as without an index
                assert value == "\ud800", (value, error)  # noqa: PT017
        a = of("a")
        for text in ("Ä😀", "a ", "A", 'q"\\'):
            for name in ("tenant_id", "Odd-1_Name"):
                assert offsets_of(name, text) == [found[values.index(text)]], text
        assert offsets_of("tenant_id", "a") == [a]
        assert offsets_of("tenant_id", "7") == [found[2]]
        assert offsets_of("tenant_id", "x" * (LENGTH - 1)) == []
        assert Message.objects.get(offset=found[0]).headers["tenant_id"] == long


def test_a_migration_of_the_library_leaves_it_there() -> None:
    first = of("a")
    with indexed("tenant_id"):
        run(Rebuild("9999_rebuild", "sqlqueue"), atomic=True)
        try:
            assert offsets_of("tenant_id", "a") == [first]
        finally:
            run(Rebuild("9999_rebuild", "sqlqueue"), back=True, atomic=True)
        second = of("a")
        assert offsets_of("tenant_id", "a") == [second, first]
        assert indexed_headers(LOG) == ["tenant_id"]


def test_the_admin_searches_by_the_index(admin_client: Client) -> None:
    address = reverse("admin:sqlqueue_message_changelist")
    assert "tenant_id" not in admin_client.get(address).content.decode()
    many = [NewMessage(n, headers={"tenant_id": f"t{n % 500}"}) for n in range(3000)]
    publish_many("t", many)
    with indexed("tenant_id"):
        mine = offsets_of("tenant_id", "t77")
        assert len(mine) == 6
        recorder = Recorder()
        with connection.execute_wrapper(recorder):
            html = admin_client.get(address, {"topic": "t", "header-tenant_id": "t77"}).content.decode()
        assert offsets(html) == mine
        assert 'value="t77"' in html
        searches = [one for one in recorder.statements.values() if "tenant_id" in one[0] and "ORDER BY" in one[0]]
        (search,) = searches
        plan = str(plan_of(*search))
        assert "sqlqueue_header_tenant_id" in plan
        assert "Sort" not in plan
        assert "filesort" not in plan
        assert "TEMP B-TREE" not in plan
        html = admin_client.get(address, {"header-tenant_id": "t77"}).content.decode()
        assert "Choose a topic" in html
        html = admin_client.get(address, {"topic": "t", "header-tenant_id": "x" * LENGTH}).content.decode()
        assert "at most 199 characters" in html
        html = admin_client.get(address, {"topic": "t", "header-tenant_id": "t77", "key": "k"}).content.decode()
        assert "Search by one header alone" in html
        onward = {"topic": "t", "header-tenant_id": "t77", "from": f"[0, {mine[1]}]"}
        assert offsets(admin_client.get(address, onward).content.decode()) == mine[2:]
    assert "The header tenant_id has no index." in admin_client.get(address, {"header-tenant_id": "x"}).content.decode()


def test_an_attempt_that_was_interrupted_is_completed() -> None:
    first = of("a")
    with connection.schema_editor(atomic=False) as editor:
        index_header.add(editor, "tenant_id")
        if connection.vendor != "postgresql":
            on = " ON sqlqueue_message" if connection.vendor == "mysql" else ""
            editor.execute(f"DROP INDEX sqlqueue_header_tenant_id{on}")
        else:
            editor.execute(
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'sqlqueue_header_tenant_id'::regclass"
            )
    assert indexed_headers(LOG) == []
    with indexed("tenant_id"):
        assert offsets_of("tenant_id", "a") == [first]


@pytest.mark.database("postgresql")
def test_it_is_not_made_in_a_transaction() -> None:
    with pytest.raises(NotSupportedError, match="atomic = False"):
        run(of_the_project("tenant_id"), atomic=True)


@pytest.mark.once
@pytest.mark.parametrize("name", ["", "a.b", "ä", 'a"b', "a'b", "x" * 41, "a%s", 5, None, "a\n"])
def test_names_that_are_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="IndexHeader takes the name of a header"):
        IndexHeader(name)


@pytest.mark.once
def test_as_a_migration_of_django() -> None:
    operation = IndexHeader("tenant-id")
    assert operation.deconstruct() == ("IndexHeader", ["tenant-id"], {})
    assert operation.migration_name_fragment == "index_header_tenant_id"
    assert operation.describe() == "Index the header tenant-id of the queue's messages"
    assert importlib.import_module("sqlqueue").IndexHeader is IndexHeader


@pytest.mark.once
def test_before_the_queues_own_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.introspection, "table_names", lambda *_: [])
    with pytest.raises(CommandError, match="depend on one of sqlqueue's"):
        run(of_the_project("tenant_id"))


@pytest.mark.once
def test_on_a_database_without_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shape()
    monkeypatch.setattr("sqlqueue.database.index_header.router.allow_migrate", lambda *_, **__: False)
    run(of_the_project("tenant_id"))
    assert shape() == before
