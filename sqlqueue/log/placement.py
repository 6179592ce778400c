"""The placement of messages: on which database a message belongs, where it is looked for, and how it gets there.

The settings say which databases a topic is on; what is stored with it is compared with that (topics.published_topic).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.keys import database_of, did_you_mean, new_id
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log, all_logs, home_log, logs_of
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.transactions import in_callers_transaction
from sqlqueue.exceptions import ConfigurationError, InvalidMessage, PartlyPublished
from sqlqueue.log import relay as relays
from sqlqueue.log.adding import add_rows
from sqlqueue.log.published_topic import CREATED, Published, PublishedMany, PublishedTopic, Status
from sqlqueue.log.topics import planned, published_topic
from sqlqueue.signals import announce, message_published

T = TypeVar("T")


class Destination(NamedTuple):
    """Where a message goes: its log, and that of the caller's transaction, which relays it; None if it enters
    its log at once."""

    log: Log
    relay: Log | None = None


def open_logs() -> list[Log]:
    """Return the logs on which the caller has a transaction open."""
    return [log for log in all_logs() if in_callers_transaction(log.connection)]


def destination(topic: str, key: str, id: str | None, relay: bool) -> Destination:
    """Return where a message goes: the database of its key, or of its id; without both that of the open transaction, or
    any of the topic's.

    Raises InvalidMessage if the caller's transaction is on another database than the message's, unless `relay` is
    given: two databases do not commit together.
    """
    return chooser(topic, relay)(key, id)


def chooser(topic: str, relay: bool) -> Callable[[str, str | None], Destination]:
    """Return what `destination` does for messages of one topic, by key and id."""
    logs, opened = logs_of(topic), open_logs()

    def choose(key: str, id: str | None) -> Destination:
        log = _log(logs, key, id, opened)
        if opened and log not in opened:
            _refuse_transaction(topic, key, log, opened, relay)
            return Destination(log, opened[0])
        return Destination(log)

    return choose


def destination_on_commit(topic: str, key: str, id: str | None) -> tuple[Log, Log]:
    """Return the log that a message goes to, and the one after whose commit. Raises InvalidMessage
    if it cannot be told which transaction is meant."""
    opened = open_logs()
    log = _log(logs_of(topic), key, id, opened)
    if not opened or log in opened:
        return log, log
    if len(opened) > 1:
        raise InvalidMessage(
            f"transactions are open on {_told(opened)}, and the message of topic {topic!r} goes to {log.alias!r}: say"
            " which commit is meant with transaction.on_commit(…, using=…)"
        )
    return log, opened[0]


def _refuse_transaction(topic: str, key: str, log: Log, opened: list[Log], relay: bool) -> None:
    what = f"key {key!r}" if key else "this message"
    if not relay:
        raise InvalidMessage(
            f"{what} of topic {topic!r} belongs on database {log.alias!r}, and the open transaction is on"
            f" {_told(opened)}: they would not commit together. Use publish_on_commit, or relay=True, which commits"
            " with the transaction and moves the message to its database afterwards, once"
        )
    if len(opened) > 1:
        raise InvalidMessage(
            f"{what} of topic {topic!r} belongs on database {log.alias!r}, and transactions are open on"
            f" {_told(opened)}: relay=True needs one of them only, with which it commits"
        )


def _log(logs: Sequence[Log], key: str, id: str | None, opened: Sequence[Log]) -> Log:
    text = key or id
    if isinstance(text, str) and text:  # what is no string is refused with the message
        return log_of(text, logs)
    return next((log for log in opened if log in logs), None) or log_of(new_id(), logs)


def log_of(text: str, logs: Sequence[Log]) -> Log:
    """Return the one of these logs that a key belongs to, or a keyless message's id."""
    return logs[0] if len(logs) == 1 else Log.of(database_of(text, [log.alias for log in logs]))


def _told(logs: Iterable[Log]) -> str:
    return " and ".join(repr(log.alias) for log in logs)


def first_found(
    look: Callable[[Log], T | None], topic: str, key: str, id: str, afterwards: Callable[[Log], T | None] | None = None
) -> T | None:
    """Look for a message in the log, or the schedule, of the databases where it can be, by their aliases, until one has
    something to say of it: it is on one at most. One that does not answer matters only if the message is not found on
    the others. afterwards: how to look at all of them once more if it is on none."""
    silent: Error | None = None
    logs = searched(topic, key, id)
    for log in logs:
        try:
            if found := look(log):
                return found
        except Error as error:
            if not settings.several or not retries.unreachable(log, error):
                raise
            silent = error
    if silent is not None:
        raise silent
    if afterwards is None:
        return None
    return next((found for log in logs if (found := afterwards(log))), None)


def searched(topic: str, key: str, id: str = "") -> list[Log]:
    """Return the logs where a message of this topic, key and id can be, the likeliest first: one
    that has a key is on that of the key, and a keyless one may be where its publisher's transaction was."""
    if not settings.several:
        return [home_log()]
    logs = logs_of(topic)
    likely = log_of(key or id, logs)
    return [likely, *(log for log in logs if log != likely and not key)]


def any_log(topic: str) -> Log:
    """Return a log that has a topic, to ask whether it is declared."""
    return logs_of(topic)[0] if settings.several and isinstance(topic, str) else home_log()


def worked_on(topic: str, database: str, offsets: Iterable[int] | None) -> list[Log]:
    """Return the logs that an operation on a topic is about: the one that is named, else those of the topic.

    Raises ConfigurationError for a database that has no log, and for offsets of a topic on several: an offset is one
    log's.
    """
    if database:
        return [known_log(database)]
    if not settings.several:
        return [home_log()]
    logs = logs_of(topic)
    if offsets is not None and len(logs) > 1:
        raise ConfigurationError(
            f"topic {topic!r} is on {_told(logs)}, and an offset is one log's: say which with database=…"
        )
    return list(logs)


def known_log(database: str) -> Log:
    """Return the log of an alias. Raises ConfigurationError for an alias that is that of no log."""
    if database not in settings.aliases:
        raise ConfigurationError(f"there is no log on {database!r}.{did_you_mean(database, settings.aliases)}")
    return Log.of(database)


def relay_one(topic: str, message: NewMessage, headers: Any, to: Destination) -> Published:
    """Let a message wait in the caller's transaction for its way to its database."""
    row = _topic(topic, to).row(message, headers)
    _add(to, [row])
    return Published(None, row.id, CREATED, to.log.alias)


def publish_on_each(
    topic: str, messages: Sequence[NewMessage], traced: Callable[[Any], Any], relay: bool, sender: object
) -> PublishedMany:
    """Publish many messages, each on its database: all or none of those of each.

    traced: returns the headers to store for those of a message
    sender: of the signal

    A database that does not answer fails alone. Raises InvalidMessage before one is published, and PartlyPublished if
    some databases have failed and others not.
    """
    choose, opened = chooser(topic, relay), open_logs()
    parts: dict[Destination, list[int]] = {}
    for index, message in enumerate(messages):
        parts.setdefault(choose(message.key, message.id), []).append(index)
    if relay and len(parts) > 1 and not opened:
        with next(iter(parts)).log.atomic():
            return publish_on_each(topic, messages, traced, relay, sender)

    rows: dict[Destination, list[LogRow]] = {}
    published: dict[int, tuple[Status, str]] = {}
    failed: dict[Destination, Error] = {}

    @contextmanager
    def failing_alone(to: Destination) -> Iterator[None]:
        """Note an error of a database, unless the caller has a transaction open, or there is no other database."""
        try:
            yield
        except Error as error:
            if opened or len(parts) == 1:
                raise
            if retries.classify(error) is ErrorKind.GONE:
                retries.drop_connection(to.log)
            failed[to] = error

    for to, indexes in parts.items():
        with failing_alone(to):
            row = _topic(topic, to).row
            rows[to] = [row(messages[index], traced(messages[index].headers)) for index in indexes]
    for to, some in rows.items():
        with failing_alone(to):
            statuses, ids, entered = _add(to, some)
            published.update(zip(parts[to], zip(statuses, ids)))
            if entered:
                announce(message_published, sender, topic=topic, count=entered, database=to.log.label)
    if len(failed) == len(parts) and failed:
        raise next(iter(failed.values()))
    if failed:
        unpublished = sorted(index for to in failed for index in parts[to])
        raise PartlyPublished(topic, {to.log.alias: error for to, error in failed.items()}, unpublished)
    return PublishedMany.of(*zip(*(published[index] for index in range(len(messages)))))


def _topic(name: str, to: Destination) -> PublishedTopic:
    return PublishedTopic(to.relay, planned(to.relay, name)) if to.relay else published_topic(to.log, name)


def _add(to: Destination, rows: Sequence[LogRow]) -> tuple[list[Status], list[str], int]:
    if not to.relay:
        return add_rows(to.log, rows)
    relays.add(to.relay, to.log, rows)
    return [CREATED] * len(rows), [row.id for row in rows], 0
