"""Checks of an alias: what its settings alone show. They open no connection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connections

from sqlqueue.database.replication_checks import ServerProblem
from sqlqueue.database.session_guard import change_by_options
from sqlqueue.database.session_values import Change

JOURNAL_IS_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal\b", re.IGNORECASE)
UTC = ("UTC", "Etc/UTC")
POOL_MIN_SIZE = 4  # psycopg_pool's default, and without max_size the most connections


def always(alias: str) -> Iterator[ServerProblem]:
    """Yield what no question to the server would show."""
    zone = connections.settings[alias]["TIME_ZONE"]
    if zone is not None and zone not in UTC and not connections[alias].features.supports_timezones:
        text = f"DATABASES[{alias!r}]['TIME_ZONE'] is {zone!r}: the queue's times, which are UTC, are read as others"
        hint = "Leave TIME_ZONE out of it. Tables whose times are not UTC need an alias of their own."
        yield ServerProblem(48, True, text, hint)


def unasked(alias: str) -> Iterator[ServerProblem]:
    """Yield what the server would show as well, and better: for aliases that are not asked."""
    connection = connections[alias]
    options = connection.settings_dict["OPTIONS"]
    if changed := change_by_options(connection.vendor, options):
        yield of_change(alias, changed)
    if connection.vendor == "sqlite":
        yield from not_immediate(options)
        named = connection.settings_dict["NAME"]
        if not JOURNAL_IS_WAL.search(str(options.get("init_command", ""))) and not (named and _is_wal(str(named))):
            yield journal_problem("not set to WAL")


def too_few_connections(alias: str, threads: int, own: int) -> Iterator[ServerProblem]:
    """Yield E049 if Django's connection pool has not a connection for each thread of a consumer process. threads: of
    its handlers; own: how many others it has."""
    pool = connections[alias].settings_dict["OPTIONS"].get("pool")
    if not pool:
        return
    options = pool if isinstance(pool, dict) else {}
    most = options.get("max_size") or options.get("min_size", POOL_MIN_SIZE)
    needed = 2 * threads + own  # as many again may come on top, see database.limits
    if most < needed:
        text = (
            f"the connection pool of DATABASES[{alias!r}] gives {most}, and a consumer process takes {needed}: "
            f"2 × {threads} for handler threads, and {own} of its own; they would wait for each other"
        )
        hint = f"Set OPTIONS['pool'] = {{'max_size': {needed}}} or more, or have fewer THREADS, or no pool."
        yield ServerProblem(49, True, text, hint)


def of_change(alias: str, changed: Change) -> ServerProblem:
    """Return E047 for what an alias's sessions change."""
    return ServerProblem(47, True, f"alias {alias!r}: {changed.text}", changed.hint)


def not_immediate(options: Mapping[str, Any]) -> Iterator[ServerProblem]:
    """Yield W006 unless these OPTIONS say that transactions are IMMEDIATE."""
    if str(options.get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        text = "SQLite transactions are not IMMEDIATE: two that read and then write make each other fail"
        yield ServerProblem(
            6, False, text, "Set OPTIONS['transaction_mode'] = 'IMMEDIATE' (and a timeout of some seconds)."
        )


def journal_problem(mode: str) -> ServerProblem:
    """Return W007 for a journal mode."""
    text = f"SQLite's journal mode is {mode}: every reader waits for every writer"
    return ServerProblem(7, False, text, "Set OPTIONS['init_command'] = 'PRAGMA journal_mode = WAL'.")


def _is_wal(name: str) -> bool:
    """Tell whether a file says that its journal is WAL, as it goes on to be whatever the settings are: bytes 18 and 19
    of the header (https://www.sqlite.org/fileformat2.html#the_database_header). One in memory has no journal to wait
    for."""
    if name.startswith("file:") or ":memory:" in name:
        return True
    try:
        with open(name, "rb") as file:
            return file.read(20)[18:] == b"\x02\x02"
    except OSError:
        return False
