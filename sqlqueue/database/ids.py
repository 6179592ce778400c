"""Message identities: the statements that find ids which the log or the schedule already has.

The scope of an id is (topic, id, key): the same id under another key is another message, however many
partitions a topic has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlqueue.database.dialects import Composed, Dialect
from sqlqueue.database.insert_sql import MARK, LogRow
from sqlqueue.database.log import Log

Identity = tuple[str, str, str]  # topic, id, key
IDENTITY = ("topic", "message_id", "partition_key")  # the unique columns, of the log and of the schedule
UNIQUE = ", ".join(IDENTITY)

IN_LOG = "{log_of_wanted} AS found{by_message_id}"
IN_SCHEDULE = "{schedule_of_wanted} AS found{by_scheduled_id}"
# The offset of an id. Index: the log's unique one.
FIND = 'SELECT "offset" FROM sqlqueue_message WHERE {in_log}'
# The same of one that is there, as last committed, and locks it.
FIND_LATEST = f"{FIND}{{share}}"
# The number of an id in the schedule. Index: the schedule's unique one.
FIND_SCHEDULED = "SELECT id FROM sqlqueue_scheduled_message WHERE {in_schedule}"
# Whether anything of a topic is scheduled. Index: the schedule's unique one, by the topic.
ANY_SCHEDULED = "SELECT 1 FROM sqlqueue_scheduled_message{by_scheduled_id} WHERE topic = %s LIMIT 1"
# Columns of many, each looked up by itself. Index: the unique one.
LOOK_UP = (
    "SELECT {columns} FROM {wanted} {then} {table} ON "
    "found.topic = wanted.topic AND found.message_id = wanted.message_id AND found.partition_key = wanted.partition_key"
)
# The offsets and keys of an id, under whatever keys. Index: the log's unique one.
FIND_KEYS = (
    'SELECT found."offset", found.partition_key FROM {wanted} {then} {log_of_wanted_keys} AS found{by_message_id} ON '
    "found.topic = wanted.topic AND found.message_id = wanted.message_id LIMIT %s"
)
# Which of many are taken. Few keys: a range of ids for each. Many: each is looked up by itself, since ranges are costly
# to plan, and one id may have any number of keys. Index: the unique one.
FEW_KEYS = 16
RANGES = "SELECT topic, message_id, partition_key FROM {table} WHERE "
RANGE = "topic = %s AND partition_key = %s AND message_id IN "


def identity_of(row: LogRow) -> Identity:
    """Return the columns of a message that must be unique."""
    return row.topic, row.id, row.key


def each_once(rows: Iterable[LogRow]) -> dict[Identity, LogRow]:
    """Return the rows by identity; of those with the same one, the first."""
    once: dict[Identity, LogRow] = {}
    for row in rows:
        once.setdefault(identity_of(row), row)
    return once


def taken(syntax: Dialect, table: str, identities: Iterable[Identity]) -> tuple[Composed, list[Any]]:
    """Return the statement, in a vendor's SQL, and its parameters, that finds which of the identities are taken in a
    table (IN_LOG or IN_SCHEDULE). At most as many as go into one INSERT."""
    ids: dict[tuple[str, str], list[str]] = {}
    for topic, id, key in identities:
        ids.setdefault((topic, key), []).append(id)
    if len(ids) <= FEW_KEYS and not syntax.plans_by_statistics:
        ranges = (f"({syntax.sql(RANGE)}({', '.join(['%s'] * len(some))}))" for some in ids.values())
        text = syntax.sql(RANGES.replace("{table}", table)) + " OR ".join(ranges)
        return Composed(text), [value for identity, some in ids.items() for value in (*identity, *some)]
    each = [(topic, id, key) for (topic, key), some in ids.items() for id in some]
    return looked_up(syntax, table, each, IDENTITY)


def looked_up(
    syntax: Dialect, table: str, identities: Sequence[Identity], columns: Sequence[str]
) -> tuple[Composed, list[Any]]:
    """Return the statement, in a vendor's SQL, and its parameters, that reads these columns of those identities that a
    table (IN_LOG or IN_SCHEDULE) has. At most as many as go into one INSERT."""
    names = ", ".join(f'found."{column}"' for column in columns)
    text = LOOK_UP.replace("{columns}", names).replace("{table}", table)
    values = [value for identity in identities for value in identity]
    return Composed(syntax.joined("wanted", IDENTITY, len(identities), text)), values


def inserted(log: Log, text: str, first: int, identities: Sequence[Identity]) -> Iterable[Identity]:
    """Return which rows of an INSERT that marks duplicates were new. first: its LAST_INSERT_ID, the number of the
    first new one; text: the statement that reads the identities of the rows in a range of numbers.

    The numbers of one statement follow each other: the server takes them together, for it sees how many rows there are.
    (The server reports duplicates only as a sentence in its own language, and its row count includes them.)
    """
    if first >= MARK:
        return ()
    if len(identities) == 1:
        return identities
    found = log.execute(text, (first, first + len(identities) - 1)).fetchall()
    return {tuple(identity) for identity in found} & set(identities)
