"""Statements of the engine that fail as the environment makes them fail: with an error of which nothing is known."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

MEANING = "unheard of"


@contextmanager
def failing(table: str, event: str = "UPDATE") -> Iterator[None]:
    """Let each INSERT or UPDATE of a table raise an error that is in no list, on every connection."""
    with connection.cursor() as cursor:
        for statement in _create(table, event):
            cursor.execute(statement)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER unheard_of" + (f" ON {table}" if connection.vendor == "postgresql" else ""))


def _create(table: str, event: str) -> list[str]:
    if connection.vendor == "sqlite":  # SQLITE_ERROR, when the statement is prepared
        return [f"CREATE TRIGGER unheard_of BEFORE {event} ON {table} BEGIN SELECT unheard_of(1); END"]
    if connection.vendor == "mysql":
        signal = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1105, MESSAGE_TEXT = '{MEANING}'"
        return [f"CREATE TRIGGER unheard_of BEFORE {event} ON {table} FOR EACH ROW {signal}"]
    raises = f"BEGIN RAISE EXCEPTION '{MEANING}' USING ERRCODE = 'XX000'; END"
    return [
        f"CREATE OR REPLACE FUNCTION unheard_of() RETURNS trigger LANGUAGE plpgsql AS $$ {raises} $$",
        f"CREATE TRIGGER unheard_of BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION unheard_of()",
    ]
