"""Checks of the databases: of their aliases, of routers and connection pools, and with `check --database` of the
servers."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.db import Error as DatabaseError
from django.db import connections, router

from sqlqueue.checks import TAG, asked, check, check_database
from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.database import sequence
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.database.limits import OWN_CONNECTIONS
from sqlqueue.database.log import Log, all_logs, home_log, reading_log
from sqlqueue.database.server_checks import findings
from sqlqueue.database.session import change_of
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
from sqlqueue.models import SubscriberHeartbeat
from sqlqueue.stats.processes import missing_tables

POOL = "sqlqueue.E049"
POOL_MIN_SIZE = 4  # psycopg_pool's default, and without max_size the most connections
UTC = ("UTC", "Etc/UTC")
ADD_ROUTER = "Add 'sqlqueue.database.router.Router' to DATABASE_ROUTERS, before the others."


@check
def check_routers() -> Iterator[CheckMessage]:
    """W020: business models live on another alias, where publishing in their transaction is not one with it; E022: the
    queue's models are routed elsewhere."""
    log = home_log()
    elsewhere: dict[str, str] = {}
    for model in apps.get_models():
        written_to = router.db_for_write(model)
        if is_beside_the_log(model._meta.app_label):
            if written_to != log.alias:
                text = f"{model.__name__} is routed to {written_to!r}, but SQLQUEUE['DATABASE'] is {log.alias!r}"
                yield Error(text, hint=ADD_ROUTER, id="sqlqueue.E022")
                break
        elif model._meta.managed and not model._meta.proxy and written_to not in settings.aliases:
            elsewhere.setdefault(written_to, model._meta.label)
    for other, label in elsewhere.items():
        yield Caution(
            f"models such as {label} are written to {other!r}, but the queue lives on {log.alias!r}",
            hint="A publish in a transaction on another alias is not part of it; use publish_on_commit there.",
            id="sqlqueue.W020",
        )
    pairs = [(alias, label) for alias in settings.aliases for label in labels()]
    if settings.several and not all(router.allow_migrate(*pair) for pair in pairs):
        text = "the queue's tables cannot be made: no database router lets sqlqueue migrate on all of its databases"
        yield Error(text, hint=ADD_ROUTER, id="sqlqueue.E022")


@check
def check_aliases() -> Iterator[CheckMessage]:
    """W006: transactions on SQLite are not IMMEDIATE; W021: USE_TZ is off; E023: an alias has autocommit off; E028: the
    databases are of several kinds; E048: the alias, or READ_ALIAS, has a TIME_ZONE, where stored times have no zone."""
    for alias in settings.aliases:
        if not connections.settings[alias]["AUTOCOMMIT"]:
            yield Error(
                f"DATABASES[{alias!r}]['AUTOCOMMIT'] is False: what a consumer locks and writes would wait for commits",
                hint="Leave AUTOCOMMIT out, and use transaction.atomic() where statements belong together.",
                id="sqlqueue.E023",
            )
    engines = {alias: connections.settings[alias]["ENGINE"] for alias in settings.aliases}
    if len(set(engines.values())) > 1:
        yield Error(
            f"the queue's databases are of several kinds: {engines}",
            hint="A message has to fit where it is relayed to, or moved: let all of them be of one kind.",
            id="sqlqueue.E028",
        )
    if not django_settings.USE_TZ:
        yield Caution(
            "USE_TZ is False: the queue's times, which are UTC, are shown as local ones; queueanalytics does not run",
            hint="Set USE_TZ = True.",
            id="sqlqueue.W021",
        )
    for log in dict.fromkeys((*all_logs(), reading_log(home_log()))):
        alias, connection = log.alias, log.connection
        zone = connection.settings_dict["TIME_ZONE"]
        if zone is not None and zone not in UTC and not connection.features.supports_timezones:
            yield Error(
                f"DATABASES[{alias!r}]['TIME_ZONE'] is {zone!r}: the queue's times, which are UTC, are read as others",
                hint="Leave TIME_ZONE out of it. Tables whose times are not UTC need an alias of their own.",
                id="sqlqueue.E048",
            )
        mode = str(connection.settings_dict["OPTIONS"].get("transaction_mode", ""))
        dialect = DIALECTS.get(connection.vendor)
        if dialect is not None and not dialect.gated and mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            yield Caution(
                "SQLite transactions are not IMMEDIATE: two that read and then write make each other fail",
                hint="Set OPTIONS['transaction_mode'] = 'IMMEDIATE' (and a timeout of some seconds).",
                id="sqlqueue.W006",
            )


@check
def check_connection_pool() -> Iterator[CheckMessage]:
    """E049: Django's connection pool has fewer connections than a consumer process of THREADS takes."""
    return pool_problems(settings.THREADS)


def pool_problems(threads: int) -> Iterator[CheckMessage]:
    """Yield E049 for each alias whose connection pool is too small for a consumer process of so many threads."""
    own = OWN_CONNECTIONS + bool(registry.schedules or settings.SCHEDULES)
    needed = 2 * threads + own  # as many again may come on top, see database.limits
    for log in all_logs():
        pool = log.connection.settings_dict["OPTIONS"].get("pool")
        options = pool if isinstance(pool, dict) else {}
        most = options.get("max_size") or options.get("min_size", POOL_MIN_SIZE)
        if pool and most < needed:
            yield Error(
                f"the connection pool of DATABASES[{log.alias!r}] gives {most}, and a consumer process takes {needed}: "
                f"2 × {threads} for handler threads, and {own} of its own; they would wait for each other",
                hint=f"Set OPTIONS['pool'] = {{'max_size': {needed}}} or more, or have fewer THREADS, or no pool.",
                id=POOL,
            )


def check_replica(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E032: READ_ALIAS is no replica of DATABASE: another kind of database, or, with `check --database` of it, one
    without the queue's tables; E047: likewise, its sessions change values."""
    if settings.problems() or not settings.is_replica(reading_log(home_log()).alias):
        return []
    log = reading_log(home_log())
    if log.connection.vendor != home_log().connection.vendor:
        primary = settings.DATABASE
        text = f"READ_ALIAS {log.alias!r} is another kind of database than DATABASE {primary!r}: no replica of it"
        return [Error(text, hint="Name the alias of a replica, or leave READ_ALIAS out.", id="sqlqueue.E032")]
    if log.alias not in (databases or ()):
        return []
    try:
        if changed := change_of(log):
            return [changed]
        return [Error(missing_tables(log), id="sqlqueue.E032")] if pending_migrations(log) else []
    except DatabaseError as error:
        return [Error(f"the replica {log.alias!r} (READ_ALIAS) does not answer: {error}", id="sqlqueue.E032")]


register(check_replica, TAG)


def replica_sessions(timeout: float) -> list[CheckMessage]:
    """Return E047 if the sessions of READ_ALIAS, a replica, change values; a warning if it has not answered within so
    many seconds: a start goes on without it."""
    log = reading_log(home_log())
    if not settings.is_replica(log.alias):
        return []
    text = f"the replica {log.alias!r} (READ_ALIAS) does not answer"
    hint = f"`check --database {log.alias}` asks it again."
    found: list[CheckMessage] = [Caution(text, hint=hint, id="sqlqueue.E032")]

    def ask() -> None:
        try:
            changed = change_of(log)
            found[:] = [changed] if changed else []
        except Exception as error:  # Django's own, too, which reads the server's version
            found[:] = [Caution(f"{text}: {error}", hint=hint, id="sqlqueue.E032")]
        finally:
            log.connection.close()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout)
    return list(found)


def check_server(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E008: a database does not answer; all others: what its server lacks of what the queue's guarantees need."""
    found: list[CheckMessage] = []
    for log in asked(databases):
        try:
            found += findings(log)
        except DatabaseError as error:
            which = f" {log.alias!r}" if settings.several else ""
            found.append(Error(f"the queue's database{which} does not answer: {error}", id="sqlqueue.E008"))
    return found


register(check_server, TAG, Tags.database)


@check_database
def check_tables(log: Log) -> Iterator[CheckMessage]:
    """E052: the tables are those of a development version."""
    if OF_DEVELOPMENT in recorded_migrations(log):
        yield Error(REFUSED.format(alias=log.alias), hint=remedy(log), id="sqlqueue.E052")


@check_database
def check_offsets(log: Log) -> Iterator[CheckMessage]:
    """E024: the log's sequence is below offsets that are known."""
    try:
        mark = sequence.look(log)
    except ConfigurationError:  # this user may not read it
        return
    if mark.fell_back:
        where = f" --database {log.alias}" if settings.several else ""
        yield Error(
            f"the log's sequence stands at offset {mark.last_issued}, and {mark.column} is at {mark.known}: it fell "
            "back (a restore, a failover, TRUNCATE), and what is published next would not be delivered",
            hint=f"Stop the consumers and run `python manage.py queuerecover{where}`, which raises it and lets nothing "
            f"count that processes knew of the former log (`migrate sqlqueue{where}` only raises it). Then replay what "
            "was published meanwhile.",
            id="sqlqueue.E024",
        )


@check_database
def check_heartbeats(log: Log) -> Iterator[CheckMessage]:
    """W042: consumer processes on several hosts listen on loopback addresses."""
    beats = SubscriberHeartbeat.objects.using(log.alias).alive().exclude(address="")
    addresses = set(beats.values_list("host", "address"))
    hosts = {host for host, _ in addresses}
    loopback = sorted({host for host, address in addresses if _is_loopback(address.rpartition(":")[0])})
    if len(hosts) > 1 and loopback:
        yield Caution(
            f"consumers run on {len(hosts)} hosts, and those on {', '.join(loopback[:5])} listen on a loopback address:"
            " what is published on another host does not wake them",
            hint="Give SQLQUEUE['WAKE_ADDRESS'] an address of each host that the others can reach, or set WAKE to False"
            " and let consumers poll. Where all of it runs on one host, silence this check.",
            id="sqlqueue.W042",
        )


def _is_loopback(address: str) -> bool:
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:  # a host's name
        return False
