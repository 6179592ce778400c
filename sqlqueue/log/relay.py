"""The relay, where it begins: messages that are published in a transaction on one shard and belong to another wait in
a table of that transaction's database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlqueue.conf import settings
from sqlqueue.core.keys import new_id
from sqlqueue.core.shards import shard_of
from sqlqueue.database.chunks import insert_all
from sqlqueue.database.insert_sql import LogRow, Stored
from sqlqueue.database.scheduling import Due
from sqlqueue.database.statements import dialect, execute
from sqlqueue.database.validation import scheduled
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.conflicts import Offer
from sqlqueue.log.placement import placement

TABLE = "sqlqueue_relayed_message"
COLUMNS = (
    "topic, partition_key, message_id, payload, headers, priority, target_group, body, expires_after, shard, due_at"
)
MARKS = "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s"
# The server copies it: it may be large. Index: the primary key.
TAKE_OVER = f"""
    INSERT INTO {TABLE} ({COLUMNS})
    SELECT topic, partition_key, COALESCE(message_id, %s), {{payload}}, {{headers}}, priority, target_group, body,
    %s, %s, NULL FROM sqlqueue_scheduled_message WHERE id = %s
"""


def add(source: str, shard: str, offers: Sequence[Offer]) -> None:
    """Let messages wait for their way to a shard, in the caller's transaction.

    Raises InvalidMessage for what only their shard could answer."""
    for offer in offers:
        topic = offer.message.row.topic
        if offer.unique_for is not None:
            raise InvalidMessage(
                f"topic {topic!r}: unique_for cannot be relayed, for only the key's own shard knows what is pending: "
                "give unique_for=False, or use publish_on_commit"
            )
        if offer.replace:
            raise InvalidMessage(
                f"topic {topic!r}: on_conflict='replace' cannot be relayed, for only the key's own shard knows what is "
                "scheduled: leave it out, or use publish_on_commit"
            )
    run: list[tuple[object, ...]] = []
    form = ""
    for offer in offers:
        row, delay, at = offer.message
        due: tuple[object, ...]
        if delay is not None:
            its, due = "{later}", (round(delay * 1_000_000),)
        elif at is not None:
            its, due = "%s", (dialect(source).time(at),)
        else:
            its, due = "NULL", ()
        if its != form and run:
            _insert(source, form, run)
            run = []
        form = its
        run.append((*scheduled(row), shard, *due))
    if run:
        _insert(source, form, run)


def _insert(source: str, due: str, rows: Sequence[Sequence[object]]) -> None:
    insert_all(source, f"{TABLE} ({COLUMNS})", f"({MARKS}, {due})", "", rows, dialect(source).rows_of_one_insert)


def shard_elsewhere(alias: str, topic: str, key: str, id: str | None) -> str:
    """Return the shard that a scheduled message belongs to if that is not this one, "" if it is: plain SQL may have
    inserted it anywhere. A keyless one may be on any of its topic's shards."""
    if not settings.sharded:
        return ""
    here, placed = settings.shard_name(alias), placement(topic)
    if not key and here in placed.shards:
        return ""
    shard = shard_of(key or id or new_id(), placed.shards)
    return "" if shard == here else shard


def add_here_or_relay(alias: str, rows: Sequence[LogRow], insert: Callable[[str, Sequence[LogRow]], object]) -> None:
    """Add messages to this shard's log with `insert`, in the caller's transaction, or let those wait for their way
    that belong elsewhere."""
    if not settings.sharded:
        insert(alias, rows)
        return
    away = {
        index: shard for index, row in enumerate(rows) if (shard := shard_elsewhere(alias, row.topic, row.key, row.id))
    }
    here = [row for index, row in enumerate(rows) if index not in away]
    if here:
        insert(alias, here)
    for index, shard in away.items():
        add(alias, shard, [Offer(Due(_with_payload(alias, rows[index]), None, None), True, False, False)])


def _with_payload(alias: str, row: LogRow) -> LogRow:
    """Return a row with the payload that the server was to copy."""
    source = row.payload
    if not isinstance(source, Stored):
        return row
    syntax = dialect(alias)
    text = f"SELECT {syntax.json_text('payload')}, {syntax.json_text('headers')}, body FROM {source.table}"
    payload, headers, body = execute(alias, f'{text} WHERE "{source.key}" = %s', (source.id,)).fetchone()
    return row._replace(payload=payload, headers=headers, body=None if body is None else bytes(body))


def take_over(alias: str, number: int, shard: str, expires: float | None) -> None:
    """Copy a scheduled message that is due to those that wait for their way to a shard, in the caller's transaction.
    expires: in so many seconds, None for never."""
    syntax = dialect(alias)
    text = TAKE_OVER.replace("{payload}", syntax.json_text("payload")).replace("{headers}", syntax.json_text("headers"))
    execute(alias, text, (new_id(), expires, shard, number))
