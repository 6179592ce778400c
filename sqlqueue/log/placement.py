"""The placement of topics: which shards a topic is on, and in which of them a message belongs.

A topic's row on DATABASE's shard fixes its shards when it is first used, as it fixes its partitions; the rows on the
other shards repeat them, so that a process can start while DATABASE's shard is down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, checked_topic, did_you_mean, new_id
from sqlqueue.core.shards import shard_of
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.transactions import in_callers_transaction, remember_once_committed
from sqlqueue.exceptions import ConfigurationError, InvalidMessage
from sqlqueue.log.stored_topics import (
    Placement,
    insert_placed,
    refuse_missing,
    repeated_placement,
    require_declared,
    stored_placement,
)

T = TypeVar("T")

_known: dict[str, Placement] = {}


class Destination(NamedTuple):
    """Where a message goes: the alias of its shard, and that of the caller's transaction whose database relays it; ""
    if it enters its shard at once."""

    alias: str
    relay: str = ""


def placement(name: str) -> Placement:
    """Return what is fixed of a topic; a new one gets it from the settings. Remembered once committed.

    Raises ConfigurationError for one that is not declared, or has a shard that SHARDS does not name any more.
    """
    try:
        return _known[name]
    except (KeyError, TypeError):
        pass
    checked_topic(name)
    return existing_placement(name) or _remembered(settings.home, name, _new(settings.home, name))


def existing_placement(name: str) -> Placement | None:
    """Return the same of a topic that exists; None for another."""
    if name in _known:
        return _known[name]
    home, here = settings.home, settings.DATABASE
    # What serves another shard asks that one, so that it does not wait for DATABASE's.
    if here != home and (repeated := repeated_placement(here, name)) is not None:
        return _remembered(here, name, repeated)
    found, gone = _ask(home, name)
    if gone is not None and (found := _elsewhere(home, name)) is None:
        raise gone
    return None if found is None else _remembered(home, name, found)


def _new(home: str, name: str) -> Placement:
    own = name.removesuffix(DEAD_LETTER_SUFFIX)
    if own != name:  # dead letters stay where their messages are
        return insert_placed(home, name, placement(own))
    require_declared(home, name)
    options = settings.topic(name)
    return insert_placed(home, name, Placement(options.partitions, options.priorities, settings.shards_of(name)))


def _elsewhere(home: str, name: str) -> Placement | None:
    """Return what another shard says of a topic, while DATABASE's is down."""
    for shard in settings.shards_of(name):
        alias = settings.shards[shard]
        if alias != home and (found := _ask(alias, name)[0]) is not None:
            return found
    return None


def _ask(alias: str, name: str) -> tuple[Placement | None, Error | None]:
    """Return what a shard says of a topic, and the error if it does not answer."""
    try:
        return stored_placement(alias, name), None
    except Error as error:
        if retries.classify(error) is not ErrorKind.GONE or connections[alias].in_atomic_block:
            raise
        retries.drop_connection(alias)
        return None, error


def _remembered(alias: str, name: str, found: Placement) -> Placement:
    refuse_missing(name, found.shards)
    remember_once_committed(alias, _known, name, found)
    return found


def forget_placements() -> None:
    """Forget all of them, so that they are looked up again."""
    _known.clear()


def open_shards() -> list[str]:
    """Return the names of the shards on which the caller has a transaction open."""
    return [name for name, alias in settings.shards.items() if in_callers_transaction(connections[alias])]


def destination(topic: str, key: str, id: str | None, relay: bool) -> Destination:
    """Return where a message goes: the shard of its key, or of its id; without both that of the open transaction, or
    any of the topic's.

    Raises InvalidMessage if the caller's transaction is on another shard than the message's, unless `relay` is given:
    two databases do not commit together.
    """
    return chooser(topic, relay)(key, id)


def chooser(topic: str, relay: bool) -> Callable[[str, str | None], Destination]:
    """Return what `destination` does for messages of one topic, by key and id."""
    placed, opened = placement(topic), open_shards()

    def choose(key: str, id: str | None) -> Destination:
        shard = _shard(placed, key, id, opened)
        if opened and shard not in opened:
            _refuse_transaction(topic, key, shard, opened, relay)
            return Destination(settings.shards[shard], settings.shards[opened[0]])
        return Destination(settings.shards[shard])

    return choose


def destination_on_commit(topic: str, key: str, id: str | None) -> tuple[str, str]:
    """Return the alias of the shard that a message goes to, and of the one after whose commit. Raises InvalidMessage if
    it cannot be told which transaction is meant."""
    placed, opened = placement(topic), open_shards()
    shard = _shard(placed, key, id, opened)
    alias = settings.shards[shard]
    if not opened or shard in opened:
        return alias, alias
    if len(opened) > 1:
        raise InvalidMessage(
            f"transactions are open on the shards {_told(opened)}, and the message of topic {topic!r} goes to "
            f"{shard!r}: say which commit is meant with transaction.on_commit(…, using=…)"
        )
    return alias, settings.shards[opened[0]]


def _refuse_transaction(topic: str, key: str, shard: str, opened: list[str], relay: bool) -> None:
    what = f"key {key!r}" if key else "this message"
    if not relay:
        raise InvalidMessage(
            f"{what} of topic {topic!r} belongs to shard {shard!r}, and the open transaction is on shard "
            f"{_told(opened)}: they would not commit together. Use publish_on_commit, or relay=True, which commits "
            "with the transaction and moves the message to its shard afterwards, once"
        )
    if len(opened) > 1:
        raise InvalidMessage(
            f"{what} of topic {topic!r} belongs to shard {shard!r}, and transactions are open on the shards "
            f"{_told(opened)}: relay=True needs one of them only, with which it commits"
        )


def _shard(placed: Placement, key: str, id: str | None, opened: list[str]) -> str:
    text = key or id
    if isinstance(text, str) and text:  # what is no string is refused with the message
        return shard_of(text, placed.shards)
    return next((shard for shard in opened if shard in placed.shards), None) or shard_of(new_id(), placed.shards)


def _told(shards: list[str]) -> str:
    return " and ".join(map(repr, shards))


def first_found(
    look: Callable[[str], T | None], topic: str, key: str, id: str, afterwards: Callable[[str], T | None] | None = None
) -> T | None:
    """Look for a message in the log, or the schedule, of the shards where it can be, by their aliases, until one has
    something to say of it: it is on one at most. A shard that does not answer matters only if the message is not found
    on the others. afterwards: how to look at all of them once more if it is on none."""
    silent: Error | None = None
    aliases = searched(topic, key, id)
    for alias in aliases:
        try:
            if found := look(alias):
                return found
        except Error as error:
            if not settings.sharded or not retries.unreachable(alias, error):
                raise
            silent = error
    if silent is not None:
        raise silent
    if afterwards is None:
        return None
    return next((found for alias in aliases if (found := afterwards(alias))), None)


def searched(topic: str, key: str, id: str = "") -> list[str]:
    """Return the aliases of the shards where a message of this topic, key and id can be, the likeliest first: one that
    has a key is on that of the key, and a keyless one may be where its publisher's transaction was."""
    if not settings.sharded:
        return [settings.DATABASE]
    found = existing_placement(topic)
    shards = settings.shards_of(topic) if found is None else found.shards
    likely = shard_of(key or id, shards)
    others = [] if key else [shard for shard in shards if shard != likely]
    return [settings.shards[shard] for shard in (likely, *others)]


def worked_on(topic: str, shard: str, offsets: Iterable[int] | None) -> list[str]:
    """Return the aliases of the shards that an operation on a topic is about: the one that is named, or worked on; else
    those of the topic.

    Raises ConfigurationError for a shard that there is not, and for offsets of a topic of several shards: an offset is
    one shard's.
    """
    if shard:
        if shard not in settings.shards:
            raise ConfigurationError(f"there is no shard {shard!r}.{did_you_mean(shard, settings.shards)}")
        return [settings.shards[shard]]
    if not settings.sharded or settings.is_at_shard:
        return [settings.DATABASE]
    found = existing_placement(topic)
    shards = settings.shards_of(topic) if found is None else found.shards
    if offsets is not None and len(shards) > 1:
        raise ConfigurationError(
            f"topic {topic!r} is on the shards {_told(list(shards))}, and an offset is one shard's: say which with "
            "shard=…"
        )
    return [settings.shards[each] for each in shards]
