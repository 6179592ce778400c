"""Relayed messages whose keys have gone over to another shard while they waited.

A shard that a key has left takes nothing of it any more, which is final. So what has not arrived there by then never
will, and gets another destination. Until it has, what was published later, and relayed to the new shard at once, waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from sqlqueue.conf import settings
from sqlqueue.database import retries
from sqlqueue.database.generations import Moved
from sqlqueue.database.statements import execute
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import batch_parts, routing
from sqlqueue.log.conflicts import add_many
from sqlqueue.log.look_back import ids_elsewhere
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.placement import placement
from sqlqueue.log.published import CREATED, Status
from sqlqueue.log.relay import TABLE
from sqlqueue.log.relayed_rows import Relayed, offer_at

ELSEWHERE = f"UPDATE {TABLE} SET shard = %s WHERE id = %s AND shard = %s"
TAKEN = f"DELETE FROM {TABLE} WHERE id = %s AND shard = %s"  # index of both: the primary key
# Earlier ones of the same keys that wait for other shards. Index: (topic, partition_key, message_id).
EARLIER = f"""
    SELECT partition_key, MIN(id) FROM {TABLE}
    WHERE topic = %s AND partition_key IN ({{marks}}) AND shard <> %s AND refused = {{false}} GROUP BY partition_key
"""


def next_of_keys(source: str, shard: str, rows: Sequence[Relayed]) -> list[Relayed]:
    """Return those of the messages that wait for a shard of which no earlier one of the same key waits for another.
    Nothing is read for topics whose shards were never changed, as far as this process knows: their shard refuses
    messages of a process that does not know of it."""
    keys: dict[str, set[str]] = {}
    for row in rows:
        if row.key and _has_moved(row.topic):
            keys.setdefault(row.topic, set()).add(row.key)
    earlier: dict[tuple[str, str], int] = {}
    for topic, some in keys.items():
        text = EARLIER.replace("{marks}", ", ".join(["%s"] * len(some)))
        found = execute(source, text, (topic, *sorted(some), shard)).fetchall()
        earlier.update({(topic, key): number for key, number in found})
    return [row for row in rows if earlier.get((row.topic, row.key), row.number) >= row.number]


def _has_moved(topic: str) -> bool:
    try:
        return routing.has_moved(topic, placement(topic))
    except ConfigurationError:  # its messages are refused one by one
        return False


def redirect(source: str, shard: str, rows: Sequence[Relayed]) -> int:
    """Give those of the messages another destination whose keys have left a shard; return how many. What belongs to
    this shard by now enters its log."""
    redirected = 0
    here = settings.shard_name(source)
    for row in rows:
        placed = placement(row.topic)
        if not row.key and routing.takes_keyless(row.topic, placed, shard):
            continue
        to = routing.present_shard(row.topic, placed, row.key or row.id)
        if to == here:
            with suppress(Moved):  # it has left this shard, too: the next look redirects it
                redirected += retries.run(source, _take_in, source, shard, row)
        elif to != shard:
            redirected += retries.run(source, _send_elsewhere, source, shard, row.number, to)
    return redirected


def _send_elsewhere(source: str, shard: str, number: int, to: str) -> int:
    members = batch_parts.lock_relayed(source, [number])
    if not execute(source, ELSEWHERE, (to, number, shard)).rowcount:
        return 0  # another process has
    for part_key in members.values():
        batch_parts.change(source, {part_key: -1, part_key._replace(shard=to): 1})
    return 1


def _take_in(source: str, shard: str, row: Relayed) -> int:
    members = batch_parts.lock_relayed(source, [row.number])
    if not execute(source, TAKEN, (row.number, shard)).rowcount:
        return 0  # another process has
    offer, statuses = offer_at(source, row), list[Status]()
    if not ids_elsewhere(source, [offer.message.row]):
        statuses = add_many(source, [offer])
        notify_after_commit(source)
    for part_key in members.values():
        batch_parts.change(source, {part_key: -1, part_key._replace(shard=""): statuses.count(CREATED)})
    return 1


def waits_for_another(source: str, topic: str, key: str) -> str:
    """Return the shard for which the last message of a key waits that this one relays, "" if there is none."""
    text = f"SELECT shard FROM {TABLE} WHERE topic = %s AND partition_key = %s ORDER BY id DESC LIMIT 1"
    found = execute(source, text, (topic, key)).fetchone()
    return found[0] if found else ""
