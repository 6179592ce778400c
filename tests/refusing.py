"""A log that refuses one message for a reason of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def refusing(id: str) -> Iterator[None]:
    """Let the log refuse the message of this id, for a reason that only the database knows."""
    event = "BEFORE INSERT ON sqlqueue_message FOR EACH ROW"
    before, trigger, after = {
        "sqlite": ("", f"{event} WHEN NEW.message_id = '{id}' BEGIN SELECT RAISE(ABORT, 'no {id}'); END", ""),
        "mysql": (
            "",
            f"{event} IF NEW.message_id = '{id}' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no {id}'; END IF",
            "",
        ),
        "postgresql": (
            f"CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no {id}'; END $$",
            f"{event} WHEN (NEW.message_id = '{id}') EXECUTE FUNCTION refuse()",
            "DROP FUNCTION refuse() CASCADE",
        ),
    }[connection.vendor]
    with connection.cursor() as cursor:
        for statement in filter(None, (before, f"CREATE TRIGGER refusing {trigger}")):
            cursor.execute(statement)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(after or "DROP TRIGGER refusing")
