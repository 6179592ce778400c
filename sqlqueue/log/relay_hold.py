"""The relay, held: messages that wait for their way to another shard are taken out of it, to be changed or deleted.

What moves them reads the version of the arrivals first and the messages then, and adds them only if the version is
still that one. So messages are held in this order: they are marked as refused, which what reads from now on leaves out;
then the version is changed, so that what was read before is not added; and then it is looked up which have arrived.
Killed in between, it leaves them refused, with the reason, and an operator lets them go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.statements import execute
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log import batch_parts
from sqlqueue.log.placement import first_found, open_shards
from sqlqueue.log.relay import TABLE
from sqlqueue.log.relay_moves import arrivals, delete, mark
from sqlqueue.models import Message

AT_ONCE = 500
HOLD = f"UPDATE {TABLE} SET refused = {{true}}, refusal = %s WHERE refused = {{false}} AND id IN ({{marks}})"
LET_GO = f"UPDATE {TABLE} SET refused = {{false}}, refusal = NULL WHERE refusal = %s AND id IN ({{marks}})"
PRESENT = f"SELECT id, message_id FROM {TABLE} WHERE refused = {{true}} AND shard = %s AND id IN ({{marks}})"
DROP = f"DELETE FROM {TABLE} WHERE refused = {{true}} AND shard = %s AND id IN ({{marks}})"
# No process adds what it read with an earlier version. Index: the primary key.
ADVANCE = "UPDATE sqlqueue_relay_arrival SET version = version + 1 WHERE source = %s"
# Index: (topic, partition_key, message_id).
OF_KEY = f"SELECT id, shard FROM {TABLE} WHERE topic = %s AND partition_key = %s"
OF_ID = f"{OF_KEY} AND message_id = %s"
BEING_CANCELLED = "it was being cancelled when the process ended: discard it, or try it again"


def hold(source: str, shard: str, numbers: Sequence[int], reason: str) -> list[int]:
    """Let no process move these messages any more; return the numbers of those that have not arrived. Those that have
    are deleted. reason: why they are held, for the case that this process ends before it goes on.

    Raises InvalidMessage inside a transaction, whose end would have to be waited for; and the database's error if the
    shard does not answer: nothing is held then.
    """
    _refuse_transactions()
    if shard not in settings.shards:
        raise InvalidMessage(
            f"SHARDS has no shard {shard!r}, so it cannot be told what has arrived there: name it again"
        )
    target, name = settings.shards[shard], settings.shard_name(source)
    arrivals(target, name)  # it answers
    _of(source, HOLD, numbers, reason)
    try:
        retries.run_statement(target, execute, target, ADVANCE, (name,))
        _, arrived = arrivals(target, name)
    except Error:
        _of(source, LET_GO, numbers, reason)
        raise
    there = {number: mark(number, id) for number, id in _of(source, PRESENT, numbers, shard).fetchall()}
    delete(source, [number for number, its in there.items() if its in arrived])
    return [number for number, its in there.items() if its not in arrived]


def drop(source: str, shard: str, numbers: Sequence[int], reason: str) -> int:
    """Delete messages that have not arrived, and will not; return how many. reason, errors: as of `hold`."""
    dropped = 0
    for start in range(0, len(numbers), AT_ONCE):
        if free := hold(source, shard, numbers[start : start + AT_ONCE], reason):
            dropped += retries.run(source, _drop, source, shard, free)
    return dropped


def _drop(source: str, shard: str, numbers: Sequence[int]) -> int:
    """Delete them, only while they are held: another process may have let them go on. A batch has so many less."""
    members = batch_parts.lock_relayed(source, numbers)
    there = {number for number, _ in _of(source, PRESENT, numbers, shard).fetchall()} if members else set()
    batch_parts.take_out(source, Counter(part_key for number, part_key in members.items() if number in there))
    return int(_of(source, DROP, numbers, shard).rowcount)


def take_out(topic: str, key: str, id: str | None = None) -> int:
    """Delete the messages of a topic and key (of this id, or all) that wait for their way to another shard; return how
    many there were. What a shard keeps that does not answer is left. Raises InvalidMessage inside a transaction if
    there are any."""
    return sum(drop(*found, BEING_CANCELLED) for found in waiting(topic, key, id))


def in_log(topic: str, key: str, id: str) -> bool:
    """Tell whether a message is in the log of a shard where it can be."""
    return bool(first_found(lambda alias: Message.objects.using(alias).of_id(topic, id, key).exists(), topic, key, id))


def waiting(topic: str, key: str, id: str | None = None) -> list[tuple[str, str, list[int]]]:
    """Return where messages of a topic and key wait: the alias of each shard that keeps some, the name of that to which
    they go, and their numbers."""
    text, values = (OF_KEY, (topic, key)) if id is None else (OF_ID, (topic, key, id))
    found: dict[tuple[str, str], list[int]] = {}
    for source, rows in _on_each(lambda alias: execute(alias, text, values).fetchall()):
        for number, shard in rows:
            found.setdefault((source, shard), []).append(number)
    return [(source, shard, numbers) for (source, shard), numbers in found.items()]


def _on_each(look: Callable[[str], list[tuple[int, str]]]) -> list[tuple[str, list[tuple[int, str]]]]:
    """Return what every shard answers, with its alias; one that does not is left out."""
    answers = []
    for alias in settings.aliases:
        try:
            answers.append((alias, look(alias)))
        except Error as error:
            if retries.classify(error) is not ErrorKind.GONE or connections[alias].in_atomic_block:
                raise
            retries.drop_connection(alias)
    return answers


def _refuse_transactions() -> None:
    if opened := open_shards():
        raise InvalidMessage(
            f"a transaction is open on shard {opened[0]!r}, and the message waits for its way to another shard, which "
            "takes no part in it: change or cancel it after the commit"
        )


def _of(source: str, text: str, numbers: Sequence[int], value: str) -> Any:
    return execute(source, text.replace("{marks}", ", ".join(["%s"] * len(numbers))), (value, *numbers))
