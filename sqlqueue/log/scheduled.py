"""Scheduled messages by their names: looked at, and cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlqueue.core.codec import decode
from sqlqueue.core.effects import owner_of
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH, checked_text
from sqlqueue.database import retries
from sqlqueue.database.clock import moment
from sqlqueue.database.ids import FIND_SCHEDULED
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import TAKE
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log import withdrawing
from sqlqueue.log.placement import any_log, first_found, searched
from sqlqueue.log.topics import planned
from sqlqueue.models import ScheduledMessage
from sqlqueue.payloads.versions import callers, content_type_of
from sqlqueue.twins import async_twin, refuse_in_async

AT_ONCE = 500
BEFORE_ALL = -(1 << 63)  # what was forwarded (database.forwarding) has numbers below 0
# Index: the unique one.
GET = """
    SELECT {payload}, {headers}, priority, target_group, {due}, {published}, refusal, body, expires_after
    FROM sqlqueue_scheduled_message WHERE {in_schedule}
"""
# The number of an id that is scheduled, and NULL if it is in the log. Index: the unique ones.
NUMBER_OR_LOG = f"SELECT NULL FROM sqlqueue_message WHERE {{in_log}} UNION ALL {FIND_SCHEDULED}"
# Index: (topic, partition_key).
OF_KEY = """
    SELECT id FROM sqlqueue_scheduled_message WHERE topic = %s AND partition_key = %s AND id > %s ORDER BY id LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduled message. payload: as JSON has it, whatever the topic's payload type, or bytes; due_at, published_at
    (of the first publish, whatever has replaced it since): aware, in UTC; refusal: why it cannot enter the log, "" if
    it can; content_type: of bytes, None for JSON; expires_after: in so many seconds from when it is due, None for
    never."""

    topic: str
    key: str
    id: str
    payload: Any
    headers: dict[str, Any]
    priority: int
    group: str
    due_at: datetime
    published_at: datetime
    refusal: str
    content_type: str | None = None
    expires_after: float | None = None


def get_scheduled(topic: str, *, id: str, key: str = "") -> Scheduled | None:
    """Return the message of this topic, key and id while it is scheduled; None once it is in the log, was cancelled, or
    never was. Raises InvalidMessage and ConfigurationError for what publish would refuse."""
    refuse_in_async("get_scheduled", "await aget_scheduled(…)")
    identity = _identity(topic, id, key)
    return first_found(lambda log: _get(log, identity), topic, key, id)


def _get(log: Log, identity: tuple[str, str, str]) -> Scheduled | None:
    topic, id, key = identity
    syntax = log.dialect
    columns = {name: syntax.json_text(name) for name in ("payload", "headers")}
    columns |= {"due": syntax.epoch("due_at"), "published": syntax.epoch("created_at")}
    text = GET
    for name, column in columns.items():
        text = text.replace(f"{{{name}}}", column)
    found = log.execute(text, identity).fetchone()
    if found is None:
        return None
    payload, headers, priority, group, due, published, refusal, body, expires_after = found
    try:
        value, stored = decode(payload), decode(headers)
    except (ValueError, RecursionError) as error:  # of plain SQL
        raise InvalidMessage(
            f"message {id!r} of topic {topic!r} is scheduled, and Python cannot read it: {error}. It cannot enter the "
            "log: replace it, or cancel it"
        ) from None
    return Scheduled(
        topic,
        key,
        id,
        value if body is None else bytes(body),
        callers(stored or {}),
        priority,
        group,
        moment(due),
        moment(published),
        refusal or "",
        None if body is None else content_type_of(stored),
        expires_after,
    )


aget_scheduled = async_twin(get_scheduled)


def cancel(topic: str, *, id: str, key: str = "") -> bool:
    """Delete a message from the schedule, in the caller's transaction; return whether it was still scheduled.

    False: it is in the log already, or was never scheduled, as far as the caller's transaction sees. One that is
    on its way from another database (relay=True) is left.

    Raises InvalidMessage and ConfigurationError for what publish would refuse.
    """
    refuse_in_async("cancel", "await acancel(…)")
    identity = _identity(topic, id, key)
    return bool(first_found(lambda log: retries.run_statement(log, _cancel, log, identity), topic, key, id))


def cancel_all(topic: str, *, key: str) -> int:
    """Delete all messages of a topic and key from the schedule, all or none of them, in the caller's transaction;
    return how many there were. Those that are entering the log are not among them.

    Raises what `cancel` does.
    """
    refuse_in_async("cancel_all", "await sync_to_async(cancel_all)(…)")
    planned(any_log(topic), topic)
    checked_text(key, "key", KEY_LENGTH)
    return sum(retries.run(log, _cancel_all, log, topic, key) for log in searched(topic, key))


acancel = async_twin(cancel)


def _identity(topic: str, id: str, key: str) -> tuple[str, str, str]:
    planned(any_log(topic), topic)
    if id == "":
        raise InvalidMessage("id is empty, and no message has an empty id: give the one that it was published with")
    return topic, checked_text(id, "id", ID_LENGTH), checked_text(key, "key", KEY_LENGTH)


def _cancel(log: Log, identity: tuple[str, str, str]) -> bool:
    everywhere = log.execute(NUMBER_OR_LOG, identity * 2).fetchall()
    # It may be in both, if two transactions that did not see each other have published it: then it is delivered.
    in_log = (None,) in everywhere
    found = next((row for row in everywhere if row != (None,)), None)
    while found is not None:
        if _take(log, found[0], identity):
            return not in_log
        found = log.execute(FIND_SCHEDULED + "{update}", identity).fetchone()  # it may have been scheduled anew
    return False


def _take(log: Log, number: int, identity: tuple[str, str, str]) -> bool:
    """Delete a scheduled message; False if it is not there any more."""
    owned = owner_of(identity[0]) is not None
    rows = ScheduledMessage.objects.using(log.alias).filter(pk=number)
    if not owned and not withdrawing.scheduled_with_effect(rows):
        return bool(log.execute(TAKE, (number, *identity)).rowcount)
    with log.atomic(savepoint=False):
        withdrawing.withdraw_scheduled(log, [number], owned=owned)
        return bool(log.execute(TAKE, (number, *identity)).rowcount)


def _cancel_all(log: Log, topic: str, key: str) -> int:
    count, last = 0, BEFORE_ALL
    while True:
        found = [number for (number,) in log.execute(OF_KEY, (topic, key, last, AT_ONCE)).fetchall()]
        if found:
            withdrawing.withdraw_scheduled(log, found, owned=owner_of(topic) is not None)
            text = log.dialect.delete("sqlqueue_scheduled_message", "id", len(found), ("topic", "partition_key"))
            count += log.execute(text, (*found, topic, key)).rowcount
            last = found[-1]
        if len(found) < AT_ONCE:
            return count
