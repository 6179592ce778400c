"""The members of batches: the header that makes a message one, and its bit in the row of a part for each group that
settles it.

A member's state is absolute: its bit is set in whatever transaction stores the outcome, in any order and twice. So
nothing has to be counted once, and no part of the queue has to remember what was counted. A settle finds the members of
its partition in few rows, which the settles of other partitions do not write.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef

from sqlqueue.contrib.batches.models import BITS, Batch, BatchPart
from sqlqueue.core.codec import decode
from sqlqueue.core.effects import APPS, EffectWrite
from sqlqueue.database.dialects.base import marks_of
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import insert_all

HEADER = next(iter(APPS))
AT_ONCE = 500  # parts of one statement

# Whose registration waits for this transaction's end, as a removal does. Index: the unique (topic, group).
GROUPS = "SELECT consumer_group FROM sqlqueue_consumer_group WHERE topic = %s ORDER BY consumer_group{share}"
COLUMNS = "batch, part, topic, consumer_group, members, outstanding"
ROW = "(%s, %s, %s, %s, %s, %s)"
KEY = "batch, part, consumer_group"
ADDED = {name: f"sqlqueue_batch_part.{name} | {{new:{name}}}" for name in ("members", "outstanding")}
CHANGE = "UPDATE sqlqueue_batch_part SET {change} WHERE batch = %s AND part IN ({parts})"
# What becomes of some members of each part: {bits}; plain SQL may name some that there are not. Assignments are done
# from left to right on MySQL and MariaDB.
ACKED = "outstanding = outstanding & ~{bits}, dead = dead & ~{bits}"
DEAD = "outstanding = outstanding & ~{bits}, dead = dead | (members & {bits})"
WITHDRAWN = "outstanding = outstanding & ~{bits}"
RETURNED = "outstanding = outstanding | (members & {bits}), dead = dead & ~{bits}"
RETURNED_IF_DEAD = "outstanding = outstanding | (dead & {bits}), dead = dead & ~{bits}"
# A member that no group was registered for when it was published is alone in its part: the group that settles it takes
# that.
TAKEN = "consumer_group = %s, "

Bits = dict[int, int]  # some members of a batch: bits by part


class Member(NamedTuple):
    """A message of a batch. number: unique in the batch, and the same in all copies of the message; its part, times
    BITS, and its bit."""

    batch: str
    number: int

    @property
    def headers(self) -> dict[str, Any]:
        """The headers by which a message is this member."""
        return {HEADER: f"{self.batch}:{self.number}"}


class Numbers:
    """Numbers for the members that one thread adds to a batch: no other thread has any of them."""

    def __init__(self) -> None:
        self._parts = count(secrets.randbits(56))
        self._last: dict[object, int] = {}

    def next(self, origin: object) -> int:
        """Return the number of one more member. origin: of those that share parts with it; None: it gets its own."""
        if origin is None:
            return next(self._parts) * BITS
        number = self._last.get(origin, -1) + 1
        if number % BITS == 0:
            number = next(self._parts) * BITS
        self._last[origin] = number
        return number


def member_of(headers: Any) -> Member | None:
    """Return which member a message with these headers is, as the database gave them; None: it is in no batch."""
    return _member(headers) if isinstance(headers, str) else _named(headers)


@lru_cache(maxsize=4_096)  # of a message that is settled, and then looked at again
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
    found: dict[tuple[str, int, str], int] = defaultdict(int)
    for (batch, number), target in members:
        part, bit = divmod(number, BITS)
        for group in [target] if target else groups or [""]:
            found[batch, part, group] |= 1 << bit
    rows = [(batch, part, topic, group, bits, bits) for (batch, part, group), bits in sorted(found.items())]
    insert_all(log, f"sqlqueue_batch_part ({COLUMNS})", ROW, log.dialect.upsert(KEY, ADDED), rows, AT_ONCE)


def settle(log: Log, writes: Sequence[EffectWrite]) -> None:
    """Store how groups have settled members, in the transaction that does so."""
    found: dict[tuple[str, str, str], Bits] = defaultdict(lambda: defaultdict(int))
    for each in writes:
        if (member := member_of(each.headers)) is not None:
            part, bit = divmod(member.number, BITS)
            found[each.lease.ref.group, member.batch, ACKED if each.value else DEAD][part] |= 1 << bit
    for (group, batch, change), bits in sorted(found.items()):
        if _change(log, batch, bits, change, group) < len(bits):
            _change(log, batch, bits, TAKEN + change, "", taken_by=[group])


def withdraw(log: Log, group: str, headers: Iterable[Any]) -> set[str]:
    """Store that members are settled without an outcome, for a group ("": for all); return their batches."""
    batches: set[str] = set()
    for batch, bits in _of_headers(headers):
        _change(log, batch, bits, WITHDRAWN, *({"", group} if group else ()))
        batches.add(batch)
    return batches


def give_back(log: Log, group: str, headers: Iterable[Any]) -> None:
    """Store that a group gets members again. Once their batch is finished, only those that were dead letters count."""
    for batch, bits in _of_headers(headers):
        unfinished = Batch.objects.using(log.alias).filter(id=batch, finished_at=None, cancelled_at=None).exists()
        _change(log, batch, bits, RETURNED if unfinished else RETURNED_IF_DEAD, *{"", group})


def forget_group(log: Log, topic: str, group: str) -> None:
    """Forget the members that a group has to settle, of batches that are not finished. A later group of its name is
    another one, which may not see them."""
    unfinished = Batch.objects.filter(id=OuterRef("batch"), over=False, finished_at=None)
    rows = BatchPart.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    rows.filter(Exists(unfinished)).delete()


def are_in(log: Log, topic: str) -> bool:
    """Tell whether messages of a topic are members of a batch. Index: (topic, group)."""
    return BatchPart.objects.using(log.alias).filter(topic=topic).exists()


def _change(
    log: Log, batch: str, bits: Mapping[int, int], change: str, *groups: str, taken_by: Sequence[str] = ()
) -> int:
    """Change members of a batch, for some groups, without any for all; return of how many rows. Index: the unique
    (batch, part, group)."""
    parts, rows = sorted(bits), 0
    of_groups = f" AND consumer_group IN ({marks_of(len(groups))})" if groups else ""
    for some in (parts[start : start + AT_ONCE] for start in range(0, len(parts), AT_ONCE)):
        case = f"CASE part{' WHEN %s THEN %s' * len(some)} END"
        cases = [value for part in some for value in (part, bits[part])] * change.count("{bits}")
        text = CHANGE.replace("{change}", change).replace("{bits}", case).replace("{parts}", marks_of(len(some)))
        rows += log.execute(text + of_groups, (*taken_by, *cases, batch, *some, *groups)).rowcount
    return rows


def _of_headers(headers: Iterable[Any]) -> Iterator[tuple[str, Bits]]:
    """Yield some members of a batch at a time, as they are read."""
    found: dict[str, Bits] = defaultdict(lambda: defaultdict(int))
    for read, each in enumerate(headers, 1):
        if (member := member_of(each)) is not None:
            part, bit = divmod(member.number, BITS)
            found[member.batch][part] |= 1 << bit
        if read % AT_ONCE == 0:
            yield from sorted(found.items())
            found.clear()
    yield from sorted(found.items())
