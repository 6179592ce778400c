"""MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sqlqueue.database.dialects.base import RANGES, UNIQUE, Composed, Dialect, given, marks_of, new_values


class MySQL(Dialect):
    """MySQL 8 and 9, MariaDB from 10.6."""

    vendor = "mysql"
    quote = "`"
    branch = "({})"
    slotted = True
    remaining = "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {}) / 1000000".format
    # TIMESTAMPDIFF knows no time zones, and the columns hold UTC. A text in place of the literal would be parsed for
    # each row.
    microseconds = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', {})".format
    # A number: the driver would spend more on a datetime than on all other columns, and TIMESTAMPDIFF takes as long for
    # NULL.
    epoch = f"CASE WHEN {{0}} IS NOT NULL THEN {microseconds('{0}')} END".format
    moved = "{} + INTERVAL %s MICROSECOND".format
    placeholders: ClassVar = {
        **RANGES,
        **UNIQUE,
        "now": "UTC_TIMESTAMP(6)",
        "later": "UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND",
        "earlier": "UTC_TIMESTAMP(6) - INTERVAL %s MICROSECOND",
        "minute": "TIMESTAMP(UTC_DATE(), MAKETIME(HOUR(UTC_TIME()), MINUTE(UTC_TIME()), 0))",
        "greatest": "GREATEST",
        "least": "LEAST",
        "true": "1",
        "false": "0",
        "share": " LOCK IN SHARE MODE",
        "update": " FOR UPDATE",
        "skip": " FOR UPDATE SKIP LOCKED",
        "by_stream": " FORCE INDEX (sqlqueue_message_fetch)",
        "by_offset": " FORCE INDEX (PRIMARY)",
        "by_due": " FORCE INDEX (sqlqueue_scheduled_due)",
        "by_receipt": " FORCE INDEX (sqlqueue_receipt_message)",
        "by_id": " FORCE INDEX (PRIMARY)",
        "by_end": " FORCE INDEX (sqlqueue_lease_until)",
        "by_holder": " FORCE INDEX (sqlqueue_lease_holder)",
        "by_digest": " FORCE INDEX (sqlqueue_heartbeat_serves)",
        "by_message_id": " FORCE INDEX (sqlqueue_message_id)",
        "by_scheduled_id": " FORCE INDEX (sqlqueue_scheduled_id)",
        "then": "STRAIGHT_JOIN",
        "div": "DIV",
        "begun": "NULL",
        "bytes": "LENGTH(payload) + COALESCE(LENGTH(headers), 0) + COALESCE(LENGTH(body), 0)",
    }

    def unless_locked(self, text: str, seconds: float) -> str:
        """MariaDB waits not at all, and runs what MySQL takes for a comment. MySQL's waits have whole seconds, so that
        what only reads has a time in which to end instead."""
        command, rest = self.sql(text).split(None, 1)
        limit = f"MAX_EXECUTION_TIME({seconds * 1000:.0f})" if command == "SELECT" else "SET_VAR(lock_wait_timeout = 1)"
        return Composed(f"/*M!100100 SET STATEMENT lock_wait_timeout = 0 FOR */ {command} /*+ {limit} */ {rest}")

    def joined(self, name: str, columns: Sequence[str], rows: int, text: str) -> str:
        """MySQL's VALUES and MariaDB's are different words."""
        before, after = self.sql(text).split(f"{{{self.quote}{name}{self.quote}}}")
        named = ", ".join(f"%s AS {self.quote}{column}{self.quote}" for column in columns)
        others = [f"SELECT {marks_of(len(columns))}"] * (rows - 1)
        return f"{before}({' UNION ALL '.join([f'SELECT {named}', *others])}) AS {name}{after}"

    def upsert(self, conflict: str, updates: dict[str, str], where: str = "") -> str:
        """Assignments are done from left to right: a column that `where` reads must be the last."""
        parts = []
        where = new_values(where, "VALUES({})")
        for column, sql in updates.items():
            value = new_values(sql, "VALUES({})")
            parts.append(f"{column} = IF({where}, {value}, {column})" if where else f"{column} = {value}")
        return "ON DUPLICATE KEY UPDATE " + ", ".join(parts)

    def ignore(self, conflict: str) -> str:
        """Not INSERT IGNORE: that would also cut what is too long, and swallow every other error."""
        column = conflict.split(",")[0].strip()
        return f"ON DUPLICATE KEY UPDATE {column} = {column}"

    def update(
        self, table: str, columns: Sequence[str], rows: int, values: str, where: str = "", key: str = "id"
    ) -> str:
        """A join that looks each row up, as for delete(): it would scan a small table, and wait for others' rows."""
        looked_up = f"{given(columns, rows)} STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON {key} = {columns[0]}"
        return f"UPDATE {looked_up} SET {values}" + (f" WHERE {where}" if where else "")

    def delete(self, table: str, key: str, rows: int, also: Sequence[str] = ()) -> str:
        """A join, which looks each row up. With IN the optimizer may scan the table, or a part of it, and a scan that
        locks waits for every open transaction whose row it meets."""
        columns = "".join(f' AND {table}."{column}" = %s' for column in also)
        return f"DELETE {table} FROM {self._looked_up(table, key, rows)}{columns}"

    def lock_free(self, table: str, key: str, rows: int, also: Sequence[str] = ()) -> str:
        """The same join, for the same reason."""
        columns = ", ".join((f'{table}."{key}"', *also))
        return f"SELECT {columns} FROM {self._looked_up(table, key, rows)}{{skip}}"

    def _looked_up(self, table: str, key: str, rows: int) -> str:
        keys = " UNION ALL ".join([f'SELECT %s AS "{key}"'] + ["SELECT %s"] * (rows - 1))
        return f'({keys}) these STRAIGHT_JOIN {table} ON {table}."{key}" = these."{key}"'
