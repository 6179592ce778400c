"""Shards: which one a key belongs to, and the lists of shards that a topic has had one after another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

SEPARATOR = ","  # of the names that a topic's row holds
NEXT = ";"  # before a further list: keys have gone over to it
COMING, CLOSING = ">", ">>"  # before the last one, while keys go over: none can have yet, or some may have
DIGITS = 15  # of the hexadecimal hash: a number that MySQL's CONV() keeps, too

ShardList = tuple[str, ...]
Lists = tuple[ShardList, ...]


class Spread(NamedTuple):
    """The lists of shards that a topic's keys have been spread over, oldest first; `coming`: the one that they go over
    to, None if there is none; `closing`: keys may have gone over. A list's place here is its version."""

    lists: Lists = ()
    coming: ShardList | None = None
    closing: bool = False

    @property
    def present(self) -> ShardList:
        """The list that holds, or held until keys began to go over."""
        return self.lists[-1] if self.lists else ()

    @property
    def all_lists(self) -> Lists:
        """All lists, the coming one included."""
        return self.lists if self.coming is None else (*self.lists, self.coming)

    def stored(self) -> str:
        """Return what a topic's row holds."""
        text = lists_text(self.lists)
        if self.coming is not None:
            text += (CLOSING if self.closing else COMING) + as_stored(self.coming)
        return text


def shard_of(text: str, shards: Sequence[str]) -> str:
    """Return the shard of a key, or of a keyless message's id, of these, whatever their order.

    The number that begins SHA-256 of its UTF-8 bytes, modulo their count, of the names in their order: what MySQL gives
    as `CAST(CONV(LEFT(SHA2(partition_key, 256), 15), 16, 10) AS UNSIGNED) % n`. A key's partition is its crc32, of
    which this is independent: every partition of a shard has its keys.
    """
    if len(shards) == 1:
        return shards[0]
    number = int(hashlib.sha256(text.encode()).hexdigest()[:DIGITS], 16)
    return sorted(shards)[number % len(shards)]


def numbered(number: int, shard: str) -> str:
    """Return an offset, or another number of one shard's, as part of an id: with the shard's name, if it has one."""
    return f"{shard}:{number}" if shard else str(number)


def as_stored(shards: Sequence[str]) -> str:
    """Return a list of shards as it is stored."""
    return SEPARATOR.join(sorted(shards))


def lists_text(lists: Sequence[Sequence[str]]) -> str:
    """Return lists of shards as they are stored, oldest first."""
    return NEXT.join(map(as_stored, lists))


def lists_from(text: str) -> Lists:
    """Return the lists that lists_text() has made a text of."""
    return tuple(tuple(one.split(SEPARATOR)) for one in text.split(NEXT)) if text else ()


def spread_from(text: str) -> Spread:
    """Return what a topic's row says of its shards."""
    done, going, coming = text.partition(COMING)
    if not going:
        return Spread(lists_from(done))
    closing = coming.startswith(COMING)
    return Spread(lists_from(done), tuple(coming.removeprefix(COMING).split(SEPARATOR)), closing)
