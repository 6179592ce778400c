"""The members of batches: the header that makes a message one, and a row for each group that settles it.

A row's state is absolute: it is written in whatever transaction stores the outcome, in any order and twice. So nothing
has to be counted once, and no part of the queue has to remember what was counted.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef

from sqlqueue.contrib.batches.models import ACKED, DEAD, OUTSTANDING, Batch, BatchMember
from sqlqueue.core.codec import decode
from sqlqueue.core.effects import APPS, EffectWrite
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import insert_all

HEADER = next(iter(APPS))
AT_ONCE = 500  # members of one statement

# Whose registration waits for this transaction's end, as a removal does. Index: the unique (topic, group).
GROUPS = "SELECT consumer_group FROM sqlqueue_consumer_group WHERE topic = %s ORDER BY consumer_group{share}"
COLUMNS = "batch, number, topic, consumer_group"
ROW = "(%s, %s, %s, %s)"
# Index: the unique (batch, number, group).
SETTLE = """
    UPDATE sqlqueue_batch_member SET state = %s WHERE batch = %s AND number IN ({marks}) AND consumer_group = %s
"""
# Those that no group was registered for when they were published, and this one settles first. Index: the same.
CLAIM = """
    UPDATE sqlqueue_batch_member SET state = %s, consumer_group = %s
    WHERE batch = %s AND number IN ({marks}) AND consumer_group = ''
"""


class Member(NamedTuple):
    """A message of a batch. number: unique in the batch, and the same in all copies of the message."""

    batch: str
    number: int

    @property
    def headers(self) -> dict[str, Any]:
        """The headers by which a message is this member."""
        return {HEADER: f"{self.batch}:{self.number}"}


def numbers() -> Iterator[int]:
    """Return numbers for the members that one thread adds to a batch: no other thread has any of them."""
    return count(secrets.randbits(40) << 22)


def member_of(headers: Any) -> Member | None:
    """Return which member a message with these headers is, as the database gave them; None: it is in no batch."""
    return _member(headers) if isinstance(headers, str) else _named(headers)


@lru_cache(maxsize=1_024)  # of a message that is settled, and then looked at again
def _member(headers: str) -> Member | None:
    try:
        return _named(decode(headers))
    except (ValueError, RecursionError):  # of plain SQL
        return None


def _named(headers: Any) -> Member | None:
    named = headers.get(HEADER) if isinstance(headers, dict) else None
    batch, _, number = named.partition(":") if isinstance(named, str) else ("", "", "")
    return Member(batch, int(number)) if batch and number.isdecimal() and len(number) < 20 else None


def groups_of(log: Log, topic: str) -> list[str]:
    """Return the groups that get what is published to a topic now, in a transaction: none of them is removed before
    its end."""
    return [group for (group,) in log.execute(GROUPS, (topic,)).fetchall()]


def add(log: Log, topic: str, groups: Sequence[str], members: Iterable[tuple[Member, str]]) -> None:
    """Add members, each with its target group ("": all), in the transaction that publishes them."""
    rows = [
        (member.batch, member.number, topic, group)
        for member, target in members
        for group in ([target] if target else groups or [""])
    ]
    insert_all(log, f"sqlqueue_batch_member ({COLUMNS})", ROW, "", rows, AT_ONCE)


def settle(log: Log, writes: Sequence[EffectWrite]) -> None:
    """Store how groups have settled members, in the transaction that does so."""
    found: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for each in writes:
        if (member := member_of(each.headers)) is not None:
            found[each.lease.ref.group, member.batch, ACKED if each.value else DEAD].add(member.number)
    for (group, batch, state), its in sorted(found.items()):
        for some in _portions(its):
            marks = ", ".join(["%s"] * len(some))
            settled = log.execute(SETTLE.replace("{marks}", marks), (state, batch, *some, group)).rowcount
            if settled < len(some):
                log.execute(CLAIM.replace("{marks}", marks), (state, group, batch, *some))


def withdraw(log: Log, group: str, headers: Iterable[Any]) -> set[str]:
    """Store that members are settled without an outcome, for a group ("": for all); return their batches."""
    batches: set[str] = set()
    for batch, some in _of_headers(headers):
        rows = BatchMember.objects.using(log.alias).filter(batch=batch, number__in=some, state=OUTSTANDING)
        rows.filter(**({"consumer_group__in": ("", group)} if group else {})).update(state=ACKED)
        batches.add(batch)
    return batches


def give_back(log: Log, group: str, headers: Iterable[Any]) -> None:
    """Store that a group gets members again. Once their batch is finished, only those that were dead letters count."""
    for batch, some in _of_headers(headers):
        rows = BatchMember.objects.using(log.alias).filter(batch=batch, number__in=some, consumer_group__in=("", group))
        if not Batch.objects.using(log.alias).filter(id=batch, finished_at=None, cancelled_at=None).exists():
            rows = rows.filter(state=DEAD)
        rows.update(state=OUTSTANDING)


def forget_group(log: Log, topic: str, group: str) -> None:
    """Forget the members that a group has to settle, of batches that are not finished. A later group of its name is
    another one, which may not see them."""
    unfinished = Batch.objects.filter(id=OuterRef("batch"), over=False, finished_at=None)
    rows = BatchMember.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    rows.filter(Exists(unfinished)).delete()


def are_in(log: Log, topic: str) -> bool:
    """Tell whether messages of a topic are members of a batch. Index: (topic, group, state)."""
    return BatchMember.objects.using(log.alias).filter(topic=topic).exists()


def _of_headers(headers: Iterable[Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield some members of a batch at a time, as they are read."""
    found: dict[str, set[int]] = defaultdict(set)
    for read, each in enumerate(headers, 1):
        if (member := member_of(each)) is not None:
            found[member.batch].add(member.number)
        if read % AT_ONCE == 0:
            yield from ((batch, some) for batch, its in sorted(found.items()) for some in _portions(its))
            found.clear()
    yield from ((batch, some) for batch, its in sorted(found.items()) for some in _portions(its))


def _portions(its: Collection[int]) -> Iterator[list[int]]:
    wanted = sorted(its)
    yield from (wanted[start : start + AT_ONCE] for start in range(0, len(wanted), AT_ONCE))
