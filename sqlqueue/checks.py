"""System checks: sqlqueue.E001 and so on are errors, sqlqueue.W… warnings. A number never changes its meaning."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.db import Error as DatabaseError
from django.db import connections, router

from sqlqueue.conf import settings
from sqlqueue.consumers.periodic import declared
from sqlqueue.consumers.registry import registry
from sqlqueue.database import alias_checks, sequence
from sqlqueue.database.limits import OWN_CONNECTIONS
from sqlqueue.database.log import Log, all_logs, current_log, home_log, reading_log
from sqlqueue.database.replication_checks import ServerProblem
from sqlqueue.database.server_checks import findings, same_kind
from sqlqueue.database.session_guard import change_of
from sqlqueue.database.tables import (
    OF_DEVELOPMENT,
    REFUSED,
    is_beside_the_log,
    labels,
    pending_migrations,
    recorded_migrations,
    remedy,
)
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.encoding import writer
from sqlqueue.payloads.topic_types import type_of
from sqlqueue.stats.replica import missing_tables

TAG = "sqlqueue"
POOL = "sqlqueue.E049"


@register(TAG)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """E001: the SQLQUEUE setting is wrong (unknown options, wrong values, a lease shorter than two heartbeats)."""
    hint = "Correct SQLQUEUE in the settings: docs/guide.md has its options and their bounds."
    found: list[CheckMessage] = [Error(problem, hint=hint, id="sqlqueue.E001") for problem in settings.problems()]
    if not found:
        try:
            writer(settings.JSON_ENCODER)
        except ConfigurationError as error:
            found.append(Error(str(error), hint="Name a class that can be imported.", id="sqlqueue.E001"))
    return found


@register(TAG)
def check_payload_types(**kwargs: Any) -> list[CheckMessage]:
    """E025: the payload type that TOPICS gives a topic cannot be imported or used, or msgspec is not installed."""
    if settings.problems():
        return []
    found: list[CheckMessage] = []
    for topic in settings.TOPICS:
        try:
            type_of(topic)
        except ConfigurationError as error:
            hint = f"Correct SQLQUEUE['TOPICS'][{topic!r}]['payload_type'], or leave it out."
            found.append(Error(f"topic {topic!r}: {error}", hint=hint, id="sqlqueue.E025"))
    return found


@register(TAG)
def check_consumers(**kwargs: Any) -> list[CheckMessage]:
    """E010: a `consumers` module cannot be imported or has a wrong option; E011: two handlers for one group and topic;
    E026: a periodic schedule is in SCHEDULES and in the code;
    W012: a visibility timeout that outlives the shutdown, or is shorter than what the lease needs; W013: polls that
    are rarer than leases last; W046: a plain handler around an `async def` or a generator."""
    if settings.problems():
        return []
    try:
        registry.discover()
    except ConfigurationError as error:
        return [Error(str(error), hint="Correct what it names.", id="sqlqueue.E010")]
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"a {settings.CONSUMERS_MODULE!r} module cannot be imported: {error!r}"
        return [Error(text, hint=f"See {frame.filename}, line {frame.lineno}.", id="sqlqueue.E010")]
    found: list[CheckMessage] = []
    try:
        declared()
    except ConfigurationError as error:
        found.append(Error(str(error), hint="Names of schedules are unique.", id="sqlqueue.E026"))
    for first, second in registry.duplicates:
        text = f"{first.name} and {second.name} both handle topic {first.topic!r} for group {first.group!r}"
        hint = "Give one of them another group: each group gets every message."
        found.append(Error(text, hint=hint, id="sqlqueue.E011"))
    for consumer in registry.consumers.values():
        if consumer.options.atomic and consumer.options.visibility_timeout > 3600:
            timeout = consumer.options.visibility_timeout
            text = f"{consumer.name} is atomic and may run for {timeout:g} s in one transaction"
            hint = "A long transaction holds locks and the horizon; split the work, or do not make it atomic."
            found.append(Caution(text, hint=hint, id="sqlqueue.W012"))
        if consumer.hides:
            text = f"{consumer.name} is a plain function around {consumer.hides}, whose code may never run"
            hint = "If it returns what that returns, its messages are dead letters: let it run that, or be async."
            found.append(Caution(text, hint=hint, id="sqlqueue.W046"))
    if settings.IDLE_POLL_INTERVAL > settings.LEASE_DURATION:
        text = f"IDLE_POLL_INTERVAL ({settings.IDLE_POLL_INTERVAL:g} s) is longer than LEASE_DURATION"
        found.append(Caution(text, hint="Poll at least once in a lease.", id="sqlqueue.W013"))
    return found


@register(TAG)
def check_aliases(**kwargs: Any) -> list[CheckMessage]:
    """W020: business models live on another alias, where publishing in their transaction is not one with it;
    W021: USE_TZ is off; E022: the queue's models are routed elsewhere; E023: its alias has autocommit off."""
    if settings.problems():
        return []
    found: list[CheckMessage] = []
    log = home_log()
    elsewhere: dict[str, str] = {}
    for model in apps.get_models():
        written_to = router.db_for_write(model)
        if is_beside_the_log(model._meta.app_label):
            if written_to != log.alias:
                text = f"{model.__name__} is routed to {written_to!r}, but SQLQUEUE['DATABASE'] is {log.alias!r}"
                hint = "Add 'sqlqueue.database.router.Router' to DATABASE_ROUTERS, before the others."
                found.append(Error(text, hint=hint, id="sqlqueue.E022"))
                break
        elif model._meta.managed and not model._meta.proxy and written_to not in settings.aliases:
            elsewhere.setdefault(written_to, model._meta.label)
    for log in [log for log in all_logs() if not connections.settings[log.alias]["AUTOCOMMIT"]]:
        text = (
            f"DATABASES[{log.alias!r}]['AUTOCOMMIT'] is False: what a consumer locks and writes would wait for a commit"
        )
        hint = "Leave AUTOCOMMIT out, and use transaction.atomic() where statements belong together."
        found.append(Error(text, hint=hint, id="sqlqueue.E023"))
    engines = {alias: connections.settings[alias]["ENGINE"] for alias in settings.aliases}
    if len(set(engines.values())) > 1:
        text = f"the queue's databases are of several kinds: {engines}"
        hint = "A message has to fit where it is relayed to, or moved: let all of them be of one kind."
        found.append(Error(text, hint=hint, id="sqlqueue.E028"))
    if settings.several and not all(
        router.allow_migrate(other, label) for other in settings.aliases for label in labels()
    ):
        text = "the queue's tables cannot be made: no database router lets sqlqueue migrate on all of its databases"
        hint = "Add 'sqlqueue.database.router.Router' to DATABASE_ROUTERS, before the others."
        found.append(Error(text, hint=hint, id="sqlqueue.E022"))
    for other, label in elsewhere.items():
        text = f"models such as {label} are written to {other!r}, but the queue lives on {log.alias!r}"
        hint = "A publish in a transaction on another alias is not part of it; use publish_on_commit there."
        found.append(Caution(text, hint=hint, id="sqlqueue.W020"))
    if not django_settings.USE_TZ:
        text = "USE_TZ is False: the queue's times, which are UTC, are shown as local ones; queueanalytics does not run"
        found.append(Caution(text, hint="Set USE_TZ = True.", id="sqlqueue.W021"))
    return found


@register(TAG)
def check_replica(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E032: READ_ALIAS is no replica of DATABASE: another kind of database, or, with `check --database` of it, one
    without the queue's tables; E047: likewise, its sessions change values."""
    if settings.problems() or not settings.is_replica(reading_log().alias):
        return []
    log = reading_log()
    if not same_kind(log, current_log()):
        primary = current_log().alias
        text = f"READ_ALIAS {log.alias!r} is another kind of database than DATABASE {primary!r}: no replica of it"
        return [Error(text, hint="Name the alias of a replica, or leave READ_ALIAS out.", id="sqlqueue.E032")]
    if log.alias not in (databases or ()):
        return []
    try:
        if changed := change_of(log):
            return [_message(alias_checks.of_change(log.alias, changed))]
        lacks = pending_migrations(log)
    except DatabaseError as error:
        return [Error(f"the replica {log.alias!r} (READ_ALIAS) does not answer: {error}", id="sqlqueue.E032")]
    return [Error(missing_tables(log), id="sqlqueue.E032")] if lacks else []


def replica_sessions(timeout: float) -> list[CheckMessage]:
    """Return E047 if the sessions of READ_ALIAS, a replica, change values; a warning if it has not answered within so
    many seconds: a start goes on without it."""
    log = reading_log()
    if not settings.is_replica(log.alias):
        return []
    text, hint = (
        f"the replica {log.alias!r} (READ_ALIAS) does not answer",
        f"`check --database {log.alias}` asks it again.",
    )
    found: list[CheckMessage] = [Caution(text, hint=hint, id="sqlqueue.E032")]

    def ask() -> None:
        try:
            changed = change_of(log)
            found[:] = [_message(alias_checks.of_change(log.alias, changed))] if changed else []
        except Exception as error:  # Django's own, too, which reads the server's version
            found[:] = [Caution(f"{text}: {error}", hint=hint, id="sqlqueue.E032")]
        finally:
            log.connection.close()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout)
    return list(found)


@register(TAG)
def check_database_settings(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E048: the alias, or READ_ALIAS, has a TIME_ZONE of its own, where stored times have no zone. E047, W006, W007 as
    far as the settings show it: with `check --database` the database itself is examined."""
    if settings.problems():
        return []
    aliases = dict.fromkeys((*settings.aliases, settings.reading_alias))
    found = [problem for alias in aliases for problem in alias_checks.always(alias)]
    found += [problem for alias in aliases if alias not in (databases or ()) for problem in alias_checks.unasked(alias)]
    return [_message(problem) for problem in found]


@register(TAG)
def check_connection_pool(**kwargs: Any) -> list[CheckMessage]:
    """E049: Django's connection pool has fewer connections than a consumer process of THREADS takes."""
    return [] if settings.problems() else pool_problems(settings.THREADS)


def pool_problems(threads: int) -> list[CheckMessage]:
    """Return E049 for each alias whose connection pool is too small for a consumer process of so many threads."""
    own = OWN_CONNECTIONS + bool(registry.schedules or settings.SCHEDULES)
    found = (alias_checks.too_few_connections(alias, threads, own) for alias in settings.aliases)
    return [_message(problem) for problems in found for problem in problems]


@register(TAG, Tags.database)
def check_server(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E002 to E005, E043, W006, W007, W009, W014 to W019: a server that cannot keep the queue's guarantees; E047: a
    session that changes values; E050: one that refuses whole updates, or cuts results; W044: options of a session where
    a pooler shares sessions; W051: several schemas with the queue's tables. Runs with `check --database`."""
    return [message for log in _asked(databases) for message in _of_server(log)]


def examined(databases: Sequence[str] | None) -> list[Log]:
    """Return the logs on the given aliases over which these can be read as they are:
    E047 names the others."""
    return [log for log in _asked(databases) if not _changes(log)]


def _asked(databases: Sequence[str] | None) -> list[Log]:
    if not databases or settings.problems():
        return []
    return [log for log in all_logs() if log.alias in databases]


def _changes(log: Log) -> bool:
    try:
        return change_of(log) is not None
    except DatabaseError:  # E008 says so
        return False


def _of_server(log: Log) -> list[CheckMessage]:
    try:
        return [_message(problem) for problem in findings(log)]
    except DatabaseError as error:
        which = f" {log.alias!r}" if settings.several else ""
        return [Error(f"the queue's database{which} does not answer: {error}", id="sqlqueue.E008")]


def _message(problem: ServerProblem) -> CheckMessage:
    kind, initial = (Error, "E") if problem.error else (Caution, "W")
    return kind(problem.text, hint=problem.hint, id=f"sqlqueue.{initial}{problem.number:03}")


@register(TAG, Tags.database)
def check_tables(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E052: the tables are those of a development version. Runs with `check --database`."""
    return [message for log in examined(databases) for message in _of_tables(log)]


def _of_tables(log: Log) -> list[CheckMessage]:
    try:
        if OF_DEVELOPMENT not in recorded_migrations(log)["sqlqueue"]:
            return []
        return [Error(REFUSED.format(alias=log.alias), hint=remedy(log), id="sqlqueue.E052")]
    except DatabaseError:  # E008 says so
        return []


@register(TAG, Tags.database)
def check_offsets(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E024: the log's sequence is below offsets that are known. Runs with `check --database`."""
    return [message for log in examined(databases) for message in _of_sequence(log)]


def _of_sequence(log: Log) -> list[CheckMessage]:
    try:
        mark = sequence.look(log)
    except (DatabaseError, ConfigurationError):  # likewise; or this user may not read it
        return []
    if not mark.fell_back:
        return []
    text = (
        f"the log's sequence stands at offset {mark.last_issued}, and {mark.column} is at {mark.known}: it fell back "
        "(a restore, a failover, TRUNCATE), and what is published next would not be delivered"
    )
    where = f" --database {log.alias}" if settings.several else ""
    hint = (
        f"Stop the consumers and run `python manage.py queuerecover{where}`, which raises it and lets nothing count "
        f"that processes knew of the former log (`migrate sqlqueue{where}` only raises it). Then replay what was "
        "published meanwhile."
    )
    return [Error(text, hint=hint, id="sqlqueue.E024")]
