"""Changes, tries again or discards messages that wait for their way to another shard, or that it has refused.

A message that has arrived meanwhile is left: see `sqlqueue.log.relay_hold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.codec import checked_json, decode, encode_headers
from sqlqueue.core.keys import new_id
from sqlqueue.core.new_message import NewMessage
from sqlqueue.core.shards import shard_of
from sqlqueue.database import retries
from sqlqueue.database.limits import check_row
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.statements import dialect
from sqlqueue.database.validation import TopicInfo, log_row, refuse_dead_letters
from sqlqueue.exceptions import InvalidMessage, Unreachable
from sqlqueue.log import batch_parts, task_states
from sqlqueue.log.placement import placement
from sqlqueue.log.relay_hold import AT_ONCE, drop, hold
from sqlqueue.models import RelayedMessage
from sqlqueue.operations.edit_scheduled import KEEP
from sqlqueue.operations.reschedule import Changed
from sqlqueue.payloads.versions import corrected

BEING_CORRECTED = "it was being corrected when the process ended: correct it, or try it again"
BEING_DISCARDED = "it was being discarded when the process ended: discard it, or try it again"


def edit(
    alias: str,
    number: int,
    *,
    topic: str | Any = KEEP,
    key: str | Any = KEEP,
    id: str | Any = KEEP,
    payload_json: str | Any = KEEP,
    headers: dict[str, Any] | Any | None = KEEP,
    priority: int | Any = KEEP,
    group: str | Any = KEEP,
) -> None:
    """Change a relayed message (its `number` is its row's id); one that was refused is moved then. It goes to the shard
    of its key.

    The arguments are those of `edit_scheduled.edit`. Raises InvalidMessage for what publish would refuse, for a key of
    this shard, inside a transaction, and if the message has arrived meanwhile; Unreachable if the shard that it was for
    does not answer. Nothing has changed then.
    """
    found = RelayedMessage.objects.using(alias).filter(pk=number).defer("payload", "headers", "body").first()
    if found is None:
        raise InvalidMessage(f"message {number} waits no longer: it has arrived, or was discarded; nothing was changed")
    given = {"topic": topic, "partition_key": key, "message_id": id, "priority": priority, "target_group": group}
    changes = {name: value for name, value in given.items() if value is not KEEP}
    if "message_id" in changes:
        changes["message_id"] = id or new_id()
    if payload_json is not KEEP:
        changes |= {"payload": checked_json(payload_json), "body": None}
    if headers is not KEEP:
        stored = RelayedMessage.objects.using(alias).filter(pk=number).values_list("headers", flat=True).first()
        changes["headers"] = encode_headers(corrected(headers, decode(stored)))
    task_states.check_edit(found.topic, changes)
    before = found.shard
    for name, value in changes.items():
        setattr(found, name, value)
    changes["shard"] = _checked_shard(alias, found, changes)
    with _answering(before):
        held = hold(alias, before, [number], BEING_CORRECTED)
    if not retries.run(alias, _change, alias, held, changes):
        raise InvalidMessage(f"message {number} has arrived at shard {before!r} meanwhile; nothing was changed")


def _change(alias: str, held: Sequence[int], changes: dict[str, Any]) -> bool:
    """Write it, only while it is held: another process may have let it go on. A member counts where it goes now."""
    rows = RelayedMessage.objects.using(alias).filter(pk__in=held, refused=True)
    for number, before in batch_parts.lock_relayed(alias, held).items():
        after = before._replace(
            topic=changes.get("topic", before.topic),
            group=changes.get("target_group", before.group),
            shard=changes["shard"],
        )
        if after != before and rows.filter(pk=number).exists():
            batch_parts.change(alias, {before: -1, after: 1})
    return bool(rows.update(**changes, refused=False, refusal=None))


def retry(alias: str, numbers: Iterable[int]) -> Changed:
    """Let relayed messages that were refused be moved once more. Others are left."""
    wanted = sorted(set(numbers))
    done = 0
    for some in _parts(wanted):
        rows = RelayedMessage.objects.using(alias).filter(pk__in=some, refused=True)
        done += rows.update(refused=False, refusal=None)
    return Changed(done, len(wanted) - done)


def discard(alias: str, numbers: Iterable[int]) -> Changed:
    """Delete relayed messages, so that they do not arrive. Those that have arrived are left. Raises as `edit` does."""
    wanted = sorted(set(numbers))
    done = 0
    for some in _parts(wanted):
        shards: dict[str, list[int]] = {}
        for number, shard in RelayedMessage.objects.using(alias).filter(pk__in=some).values_list("pk", "shard"):
            shards.setdefault(shard, []).append(number)
        for shard, its in shards.items():
            with _answering(shard):
                done += drop(alias, shard, its, BEING_DISCARDED)
    return Changed(done, len(wanted) - done)


@contextmanager
def _answering(shard: str) -> Iterator[None]:
    try:
        yield
    except Error as error:
        if retries.classify(error) is not ErrorKind.GONE:
            raise
        retries.drop_connection(settings.shards[shard])
        raise Unreachable(
            f"shard {shard!r} does not answer, and only it knows what has arrived: nothing was changed"
        ) from error


def _parts(numbers: Sequence[int]) -> Iterable[Sequence[int]]:
    return (numbers[start : start + AT_ONCE] for start in range(0, len(numbers), AT_ONCE))


def _checked_shard(alias: str, found: RelayedMessage, changes: dict[str, Any]) -> str:
    """Return the shard that a changed message belongs to. Raises InvalidMessage for what publish would refuse."""
    if not found.target_group:
        refuse_dead_letters(found.topic)
    placed = placement(found.topic)
    key, id = found.partition_key, found.message_id
    shard = found.shard
    if key or shard not in placed.shards:
        shard = shard_of(key or id, placed.shards)
    if shard == settings.shard_name(alias):
        raise InvalidMessage(
            f"a message of topic {found.topic!r} and key {key!r} belongs to this shard, {shard!r}: publish it here, "
            "and discard this one"
        )
    target = settings.shards[shard]
    info = TopicInfo(found.topic, placed.partitions, placed.priorities)
    message = NewMessage(None, key=key, id=id, priority=found.priority, group=found.target_group)
    row = log_row(dialect(target), info, message, changes.get("payload") or "null", changes.get("headers"))
    check_row(target, row, settings.MAX_PAYLOAD_BYTES)
    return shard
