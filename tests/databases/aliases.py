"""Further databases beside the test database: aliases that exist for one test."""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import environ
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue.database.tables import labels
from sqlqueue.log.topics import forget_topics
from tests.emptying import empty
from tests.processes import database_url
from tests.settings import DATABASE_OPTIONS

A, B = "default", "queue_b"
BOTH = (A, B)


def spread(*topics: str, **options: Any) -> dict[str, Any]:
    """Return settings by which topics are on both databases. options: of each."""
    return {"TOPICS": {topic: {"databases": BOTH, **options} for topic in topics}, "STRICT_TOPICS": False}


_migrated: set[str] = set()
_template: list[bytes] = []  # SQLite's file with empty tables, once it was made


def url_of(alias: str, folder: Path) -> str:
    """Return the URL of another database of the test database's kind, on the same server."""
    url = database_url()
    if connections["default"].vendor == "sqlite":
        return f"sqlite:///{folder / alias}.sqlite3"
    name = connections["default"].settings_dict["NAME"]
    before, _, after = url.rpartition(f"/{name}")
    return f"{before}/{name}_{alias}{after}"


def add(alias: str, url: str) -> None:
    """Let an alias name the database of a URL."""
    config = environ.Env.db_url_config(url)
    config["OPTIONS"] = DATABASE_OPTIONS.get(config["ENGINE"], {}) | config.get("OPTIONS", {})
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: config})[alias]


def prepare(alias: str) -> None:
    """Make the database and its tables, or empty those that there are."""
    connection = connections[alias]
    name = str(connection.settings_dict["NAME"])
    place = f"{connection.settings_dict['PORT']} {name}"
    if connection.vendor != "sqlite" and place not in _migrated:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(name)}")
            cursor.execute(f"CREATE DATABASE {connection.ops.quote_name(name)}")
    if place in _migrated:
        empty(alias)
    elif connection.vendor == "sqlite" and _template:
        Path(name).write_bytes(_template[0])
    else:
        for label in labels():
            call_command("migrate", label, database=alias, verbosity=0)
        if connection.vendor == "sqlite":
            connection.close()  # the last one writes everything into the file
            _template.append(Path(name).read_bytes())
        else:
            _migrated.add(place)


@contextmanager
def _allowed() -> Iterator[None]:
    """Let this test use the aliases that it adds: Django keeps its tests to those that they name beforehand."""
    guard = BaseDatabaseWrapper.ensure_connection
    free = inspect.getclosurevars(guard).nonlocals.get("real_ensure_connection", guard)
    BaseDatabaseWrapper.ensure_connection = free  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseDatabaseWrapper.ensure_connection = guard  # type: ignore[method-assign]


@contextmanager
def further(urls: dict[str, str]) -> Iterator[None]:
    """Add aliases for a while, for this process and for those that it starts."""
    for alias, url in urls.items():
        add(alias, url)
    before = os.environ.get("FURTHER_URLS", "")
    os.environ["FURTHER_URLS"] = f"{before} {environ_text(urls)}".strip()
    try:
        with _allowed():
            for alias in urls:
                prepare(alias)
            forget_topics()
            yield
    finally:
        os.environ["FURTHER_URLS"] = before
        forget_topics()
        for alias in urls:
            connections[alias].close()
            del connections[alias]
            del connections.settings[alias]


def environ_text(urls: dict[str, str]) -> str:
    """Return aliases as tests.settings reads them."""
    return " ".join(f"{alias}={url}" for alias, url in urls.items())


@contextmanager
def b_is_down() -> Iterator[None]:
    """Let nothing answer at the address of b in this block."""
    connection = connections[B]
    connection.close()
    before = connection.settings_dict
    nowhere = {"NAME": "/nowhere/there"} if connection.vendor == "sqlite" else {"HOST": "127.0.0.1", "PORT": "1"}
    connection.settings_dict = {**before, **nowhere}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = before


@contextmanager
def table_is_missing(alias: str, table: str) -> Iterator[None]:
    """Let a database have no table of this name in this block."""
    with connections[alias].schema_editor() as editor:
        editor.alter_db_table(None, table, f"{table}_away")
    try:
        yield
    finally:
        with connections[alias].schema_editor() as editor:
            editor.alter_db_table(None, f"{table}_away", table)
