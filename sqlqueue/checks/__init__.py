"""System checks, by subject: sqlqueue.E001 and so on are errors, sqlqueue.W… warnings. A number never changes its
meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.core.checks import CheckMessage, Tags, register
from django.db import Error as DatabaseError

from sqlqueue.conf import settings
from sqlqueue.database.log import Log, all_logs
from sqlqueue.database.session import change_of

TAG = "sqlqueue"


def check(examine: Callable[[], Iterable[CheckMessage]]) -> Callable[..., list[CheckMessage]]:
    """Register a check that asks no database. It runs unless something is wrong with the setting, which E001 tells."""

    def run(**kwargs: Any) -> list[CheckMessage]:
        return [] if settings.problems() else list(examine())

    register(run, TAG)
    return run


def check_database(examine: Callable[[Log], Iterable[CheckMessage]]) -> Callable[..., list[CheckMessage]]:
    """Register a check of each log's database, which runs with `check --database`. What two logs have in common is said
    once. E008 tells that a database does not answer, E047 that a connection changes values."""

    def run(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
        found: list[CheckMessage] = []
        for log in asked(databases):
            try:
                if change_of(log) is None:
                    found += [message for message in examine(log) if message not in found]
            except DatabaseError:  # or the tables are not there yet
                continue
        return found

    register(run, TAG, Tags.database)
    return run


def asked(databases: Sequence[str] | None) -> list[Log]:
    """Return the logs that `check --database` names."""
    return [log for log in all_logs() if log.alias in databases] if databases and not settings.problems() else []
