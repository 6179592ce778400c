"""PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from sqlqueue.database.dialects.base import WithOnConflict, marks_of
from sqlqueue.exceptions import InvalidMessage

NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # in JSON text: an escape, not an escaped backslash before "u0000"

# Of a stream, above an offset: a form that only the index of all these columns serves. The primary key does not begin
# with the priority, nor does its order do for ORDER BY while the priority is not said to be one value. A scan of the
# index ends where the first column of a compared row is over, so what equals is said alone: with all four columns in
# the row it went on to the end of the topic.
ABOVE = 'topic = %s AND "partition" = %s AND (priority, "offset") > (%s, %s)'

# The message of an identity: the first one from there on, in the order that only the unique index has, if it is that
# one. Of a topic that the statistics do not know PostgreSQL expects a row or none, by any index that begins with the
# topic, and reads all of them. In the log nothing equals, for another index would serve that. All indexes of the
# schedule begin with the topic: there the values are kept from the planner, so that it expects many rows of any.
LOG_FOLLOWING = """LATERAL (SELECT * FROM sqlqueue_message
    WHERE (message_id, topic, partition_key) >= (wanted.message_id, wanted.topic, wanted.partition_key)
    AND message_id <= wanted.message_id ORDER BY message_id, topic, partition_key LIMIT 1)"""
SCHEDULE_FOLLOWING = """LATERAL (SELECT * FROM sqlqueue_scheduled_message WHERE topic = wanted.topic
    AND (message_id, partition_key) >= (wanted.message_id, wanted.partition_key)
    AND message_id <= wanted.message_id ORDER BY topic, message_id, partition_key LIMIT 1)"""
# All messages of a topic and id: in that order, for the planner would else take the subquery apart.
LOG_KEYS = """LATERAL (SELECT * FROM sqlqueue_message
    WHERE (message_id, topic) >= (wanted.message_id, wanted.topic)
    AND (message_id, topic) <= (wanted.message_id, wanted.topic)
    AND message_id >= wanted.message_id AND message_id <= wanted.message_id
    ORDER BY message_id, topic, partition_key)"""
# Its number, for a statement that may lock: that finds its row by the primary key. OFFSET 0 keeps the values.
NUMBER_OF = """FROM (SELECT CAST(%s AS TEXT) AS topic, CAST(%s AS TEXT) AS message_id, CAST(%s AS TEXT) AS partition_key
    OFFSET 0) AS wanted JOIN {following} AS found ON found.topic = wanted.topic
    AND found.message_id = wanted.message_id AND found.partition_key = wanted.partition_key"""
IN_LOG = f'"offset" = (SELECT found."offset" {NUMBER_OF.format(following=LOG_FOLLOWING)})'
# Scheduled messages may be edited: the row that is locked must still be that message.
IN_SCHEDULE = f"""
    (id, COALESCE(topic, ''), COALESCE(message_id, ''), COALESCE(partition_key, '')) = (
    SELECT found.id, found.topic, found.message_id, found.partition_key
    {NUMBER_OF.format(following=SCHEDULE_FOLLOWING)})"""


class PostgreSQL(WithOnConflict):
    """PostgreSQL from 14."""

    vendor = "postgresql"
    refuses_silently = True
    branch = "({})"
    json_value = "CAST(%s AS JSONB)"
    driver_tells_number = False
    plans_by_statistics = True
    remaining = "EXTRACT(EPOCH FROM {} - STATEMENT_TIMESTAMP())".format
    microseconds = "CAST(EXTRACT(EPOCH FROM {}) * 1000000 AS BIGINT)".format
    # In UTC: where USE_TZ is off, Django lets the driver give times of the connection's zone, without it.
    epoch = "{} AT TIME ZONE 'UTC'".format
    moved = "{} + %s * INTERVAL '1 microsecond'".format  # a day of an interval is not always 24 hours
    json_text = "CAST({} AS TEXT)".format  # the driver would decode it
    # As it is stored, unless that is compressed: a long text of one character takes few bytes.
    size = (
        "CASE WHEN PG_COLUMN_COMPRESSION({0}) IS NULL THEN PG_COLUMN_SIZE({0}) ELSE OCTET_LENGTH(CAST({0} AS TEXT)) END"
    ).format
    placeholders: ClassVar = {
        "now": "STATEMENT_TIMESTAMP()",
        "later": "STATEMENT_TIMESTAMP() + %s * INTERVAL '1 microsecond'",
        "earlier": "STATEMENT_TIMESTAMP() - %s * INTERVAL '1 microsecond'",
        "minute": "DATE_TRUNC('minute', STATEMENT_TIMESTAMP())",
        "greatest": "GREATEST",
        "least": "LEAST",
        "true": "TRUE",
        "false": "FALSE",
        "share": " FOR SHARE",
        "update": " FOR UPDATE",
        "skip": " FOR UPDATE SKIP LOCKED",
        "by_stream": "",
        "by_offset": "",
        "by_due": "",
        "by_receipt": "",
        "by_id": "",
        "by_end": "",
        "by_holder": "",
        "by_digest": "",
        "by_message_id": "",
        "by_scheduled_id": "",
        "then": "JOIN",
        "div": "/",
        "begun": "TRANSACTION_TIMESTAMP()",
        "bytes": "OCTET_LENGTH(CAST(payload AS TEXT)) + COALESCE(OCTET_LENGTH(CAST(headers AS TEXT)), 0)"
        " + COALESCE(OCTET_LENGTH(body), 0)",
        "beyond": f"{ABOVE} AND priority <= %s",
        "within": f'{ABOVE} AND (priority, "offset") <= (%s, %s)',
        "in_log": IN_LOG,
        "in_schedule": IN_SCHEDULE,
        "log_of_wanted": LOG_FOLLOWING,
        "log_of_wanted_keys": LOG_KEYS,
        "schedule_of_wanted": SCHEDULE_FOLLOWING,
        "ascending": 'topic, "partition", priority, "offset"',
        "descending": 'topic DESC, "partition" DESC, priority DESC, "offset" DESC',
    }

    def range_values(self, topic: str, partition: int, priority: int, low: int, *high: int) -> tuple[object, ...]:
        """See ABOVE."""
        return (topic, partition, priority, low, priority, *high)

    def joined(self, name: str, columns: Sequence[str], rows: int, text: str) -> str:
        """Materialized: the planner is to make nothing of the values, see LOG_FOLLOWING."""
        return super().joined(name, columns, rows, text).replace(" AS (VALUES", " AS MATERIALIZED (VALUES", 1)

    def update(
        self, table: str, columns: Sequence[str], rows: int, values: str, where: str = "", key: str = "id"
    ) -> str:
        """VALUES: each branch of a UNION would be planned by itself."""
        source = f"(VALUES {', '.join([f'({marks_of(len(columns))})'] * rows)}) AS given ({', '.join(columns)})"
        also = f" AND {where}" if where else ""
        return f"UPDATE {table} SET {values} FROM {source} WHERE {key} = {columns[0]}{also}"

    def check_json(self, text: str, kind: str) -> None:
        """A jsonb value has no NUL character."""
        if "\\u0000" in text and NUL.search(text):
            raise InvalidMessage(f"{kind} has a NUL character (\\u0000), which PostgreSQL cannot store: take it out")

    def time(self, at: datetime) -> object:
        """The column knows time zones itself."""
        return at
