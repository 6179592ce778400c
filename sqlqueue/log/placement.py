"""The placement of messages: on which database a message belongs, and where it is looked for.

The settings say which databases a topic is on; what is stored with it is compared with that (topics.to_publish).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.core.databases import database_of
from sqlqueue.core.keys import did_you_mean, new_id
from sqlqueue.database import retries
from sqlqueue.database.transactions import in_callers_transaction
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

T = TypeVar("T")


class Destination(NamedTuple):
    """Where a message goes: the alias of its database, and that of the caller's transaction whose database relays it;
    "" if it enters its log at once."""

    alias: str
    relay: str = ""


def open_logs() -> list[str]:
    """Return the aliases of the logs on which the caller has a transaction open."""
    return [alias for alias in settings.aliases if in_callers_transaction(connections[alias])]


def destination(topic: str, key: str, id: str | None, relay: bool) -> Destination:
    """Return where a message goes: the database of its key, or of its id; without both that of the open transaction, or
    any of the topic's.

    Raises InvalidMessage if the caller's transaction is on another database than the message's, unless `relay` is
    given: two databases do not commit together.
    """
    return chooser(topic, relay)(key, id)


def chooser(topic: str, relay: bool) -> Callable[[str, str | None], Destination]:
    """Return what `destination` does for messages of one topic, by key and id."""
    databases, opened = settings.databases_of(topic), open_logs()

    def choose(key: str, id: str | None) -> Destination:
        alias = _database(databases, key, id, opened)
        if opened and alias not in opened:
            _refuse_transaction(topic, key, alias, opened, relay)
            return Destination(alias, opened[0])
        return Destination(alias)

    return choose


def destination_on_commit(topic: str, key: str, id: str | None) -> tuple[str, str]:
    """Return the alias of the database that a message goes to, and of the one after whose commit. Raises InvalidMessage
    if it cannot be told which transaction is meant."""
    opened = open_logs()
    alias = _database(settings.databases_of(topic), key, id, opened)
    if not opened or alias in opened:
        return alias, alias
    if len(opened) > 1:
        raise InvalidMessage(
            f"transactions are open on {_told(opened)}, and the message of topic {topic!r} goes to {alias!r}: say which"
            " commit is meant with transaction.on_commit(…, using=…)"
        )
    return alias, opened[0]


def _refuse_transaction(topic: str, key: str, alias: str, opened: list[str], relay: bool) -> None:
    what = f"key {key!r}" if key else "this message"
    if not relay:
        raise InvalidMessage(
            f"{what} of topic {topic!r} belongs on database {alias!r}, and the open transaction is on {_told(opened)}:"
            " they would not commit together. Use publish_on_commit, or relay=True, which commits with the transaction"
            " and moves the message to its database afterwards, once"
        )
    if len(opened) > 1:
        raise InvalidMessage(
            f"{what} of topic {topic!r} belongs on database {alias!r}, and transactions are open on {_told(opened)}:"
            " relay=True needs one of them only, with which it commits"
        )


def _database(databases: Sequence[str], key: str, id: str | None, opened: Sequence[str]) -> str:
    text = key or id
    if isinstance(text, str) and text:  # what is no string is refused with the message
        return database_of(text, databases)
    return next((alias for alias in opened if alias in databases), None) or database_of(new_id(), databases)


def _told(aliases: Iterable[str]) -> str:
    return " and ".join(map(repr, aliases))


def first_found(
    look: Callable[[str], T | None], topic: str, key: str, id: str, afterwards: Callable[[str], T | None] | None = None
) -> T | None:
    """Look for a message in the log, or the schedule, of the databases where it can be, by their aliases, until one has
    something to say of it: it is on one at most. One that does not answer matters only if the message is not found on
    the others. afterwards: how to look at all of them once more if it is on none."""
    silent: Error | None = None
    aliases = searched(topic, key, id)
    for alias in aliases:
        try:
            if found := look(alias):
                return found
        except Error as error:
            if not settings.several or not retries.unreachable(alias, error):
                raise
            silent = error
    if silent is not None:
        raise silent
    if afterwards is None:
        return None
    return next((found for alias in aliases if (found := afterwards(alias))), None)


def searched(topic: str, key: str, id: str = "") -> list[str]:
    """Return the aliases of the databases where a message of this topic, key and id can be, the likeliest first: one
    that has a key is on that of the key, and a keyless one may be where its publisher's transaction was."""
    if not settings.several:
        return [settings.DATABASE]
    databases = settings.databases_of(topic)
    likely = database_of(key or id, databases)
    return [likely, *(alias for alias in databases if alias != likely and not key)]


def worked_on(topic: str, database: str, offsets: Iterable[int] | None) -> list[str]:
    """Return the aliases of the databases that an operation on a topic is about: the one that is named, or worked on;
    else those of the topic.

    Raises ConfigurationError for a database that has no log, and for offsets of a topic on several: an offset is one
    log's.
    """
    if database:
        refuse_unknown(database)
        return [database]
    if not settings.several or settings.is_at_database:
        return [settings.DATABASE]
    databases = settings.databases_of(topic)
    if offsets is not None and len(databases) > 1:
        raise ConfigurationError(
            f"topic {topic!r} is on {_told(databases)}, and an offset is one log's: say which with database=…"
        )
    return list(databases)


def refuse_unknown(database: str) -> None:
    """Raise ConfigurationError for an alias that is that of no log."""
    if database not in settings.aliases:
        raise ConfigurationError(f"there is no log on {database!r}.{did_you_mean(database, settings.aliases)}")
