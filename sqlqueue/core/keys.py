"""Keys, ids and names: their limits, and the database, the epoch and the partition that a key belongs to. An epoch is a
block of partition numbers; a topic has had one after another."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import time
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import gcd

from sqlqueue.exceptions import ConfigurationError, InvalidMessage

TOPIC_LENGTH = 100
GROUP_LENGTH = 100
KEY_LENGTH = 255
ID_LENGTH = 255
DEAD_LETTER_SUFFIX = "_dlq"
MOST_NAMED = 30  # words that a hint lists
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
SEPARATOR = ","  # of the aliases that a topic's row holds
DIGITS = 15  # of the hexadecimal hash: a number that MySQL's CONV() keeps, too


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key: crc32 of its UTF-8 bytes, as MySQL's CRC32() and Spark's crc32 give it."""
    return zlib.crc32(key.encode()) % partitions


def new_id() -> str:
    """Return a fresh message id: a UUID whose leading bits grow with time (version 7 of RFC 9562, section 5.7).

    Growing ids keep the unique index's inserts at its end. Nothing depends on the host's clock being right.
    """
    moment = f"{time.time_ns() // 1_000_000:012x}"
    chance = os.urandom(10).hex()
    variant = "89ab"[int(chance[3], 16) & 3]  # its two highest bits are 10
    return f"{moment[:8]}-{moment[8:]}-7{chance[:3]}-{variant}{chance[4:7]}-{chance[7:19]}"


def checked_name(value: object, kind: str, length: int) -> str:
    """Return a topic's or group's name, or refuse it."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ConfigurationError(
            f"{kind} {value!r} is not a name: use letters, digits and . _ : / - and begin with a letter or digit"
        )
    if len(value) > length:
        raise ConfigurationError(f"{kind} {value!r} has {len(value)} characters; {length} is the most")
    return value


def checked_topic(value: object) -> str:
    """Return a topic's name, or refuse it; a dead-letter topic may be longer than its topic by the suffix."""
    longest = TOPIC_LENGTH + len(DEAD_LETTER_SUFFIX) * str(value).endswith(DEAD_LETTER_SUFFIX)
    return checked_name(value, "topic", longest)


def checked_consumed(value: object) -> str:
    """Return the name of a topic that is to be consumed, or refuse it: its dead letters need a name, too."""
    topic = checked_topic(value)
    if len(topic) > TOPIC_LENGTH:
        raise ConfigurationError(
            f"topic {topic!r} has {len(topic)} characters; {TOPIC_LENGTH} is the most of a topic that is consumed, for "
            f"its dead letters go to {topic + DEAD_LETTER_SUFFIX!r}: give the original topic a shorter name"
        )
    return topic


def checked_text(value: object, kind: str, length: int) -> str:
    """Return a key or an id that the database will keep whole, or refuse it: nothing is ever cut."""
    if not isinstance(value, str):
        raise InvalidMessage(f"{kind} must be a string, not {type(value).__name__}: say str(…) if that is meant")
    if len(value) > length:
        raise InvalidMessage(
            f"{kind} has {len(value)} characters; {length} is the most: use a shorter one, or a hash of it"
        )
    if "\0" in value:
        raise InvalidMessage(f"{kind} {value!r} has a NUL character, which not every database can store")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{kind} {value!r} is not valid Unicode: {error.reason}") from None
    return value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` if a known word is near, else the first of the known words."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" Did you mean {near[0]!r}?"
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return f" Known are: {', '.join(known[:MOST_NAMED])}{more}." if known else ""


def database_of(text: str, databases: Sequence[str]) -> str:
    """Return the alias of the database of a key, or of a keyless message's id, of these, whatever their order.

    The number that begins SHA-256 of its UTF-8 bytes, modulo their count, of the aliases in their order: what MySQL
    gives as `CAST(CONV(LEFT(SHA2(partition_key, 256), 15), 16, 10) AS UNSIGNED) % n`. A key's partition is its crc32,
    of which this is independent: every partition of each database has its keys.
    """
    if len(databases) == 1:
        return databases[0]
    number = int(hashlib.sha256(text.encode()).hexdigest()[:DIGITS], 16)
    return sorted(databases)[number % len(databases)]


def numbered(number: int, database: str) -> str:
    """Return an offset, or another number of one log's, as part of an id: with the database's alias, if it is given."""
    return f"{database}:{number}" if database else str(number)


def as_stored(databases: Sequence[str]) -> str:
    """Return the databases of a topic as its row holds them: nothing of a single one, whose alias is each project's
    own."""
    return SEPARATOR.join(sorted(databases)) if len(databases) > 1 else ""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One layout of a topic's partitions. It owns the numbers base … base + partitions - 1, which no other epoch ever
    has. end: the offset at or below which all of its messages are, once it is closed; None while it is open, or being
    closed."""

    number: int
    base: int
    partitions: int
    end: int | None = None

    @property
    def numbers(self) -> range:
        """The partition numbers."""
        return range(self.base, self.base + self.partitions)

    def partition_of(self, key: str) -> int:
        """Return the partition of a key, or of a keyless message's id."""
        return self.base + partition_of(key, self.partitions)


def feeders(partition: int, later: Epoch, earlier: Epoch) -> list[int]:
    """Return the partitions of an earlier epoch, on the same server, that can hold keys of a partition of a later one:
    partitions p of n and q of m share keys only if p = q modulo gcd(n, m), both numbered within their epochs."""
    common = gcd(earlier.partitions, later.partitions)
    rest = (partition - later.base) % common
    return [number for number in earlier.numbers if (number - earlier.base) % common == rest]


def numbers_of(epochs: Sequence[Epoch]) -> list[int]:
    """Return the partition numbers of all these epochs."""
    return [number for epoch in epochs for number in epoch.numbers]


def startable(epochs: Sequence[Epoch], unfinished: Collection[int]) -> set[int]:
    """Return the partitions that a group may start, if it has something left to settle in the `unfinished` ones.

    Those of the oldest epoch; a later one's once every earlier epoch has ended, and the group has settled all of each
    partition there that can hold keys of it.
    """
    found: set[int] = set()
    for index, later in enumerate(epochs):
        numbers = set(later.numbers)
        for earlier in epochs[:index]:
            if earlier.end is None:
                return found
            common = gcd(earlier.partitions, later.partitions)
            behind = {(number - earlier.base) % common for number in earlier.numbers if number in unfinished}
            numbers = {number for number in numbers if (number - later.base) % common not in behind}
        found |= numbers
    return found
