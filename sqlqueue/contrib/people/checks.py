"""System checks of people's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.db import Error as DatabaseError

from sqlqueue.checks import TAG, examined
from sqlqueue.contrib.people.topics import retention, topics
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.stored_topics import require_declared


@register(TAG)
def check_retention(**kwargs: Any) -> list[CheckMessage]:
    """sqlqueue_people.E001: the setting SQLQUEUE_PEOPLE is wrong."""
    try:
        retention()
    except ConfigurationError as error:
        return [Error(str(error), hint="docs/people.md has its option.", id="sqlqueue_people.E001")]
    return []


@register(TAG, Tags.database)
def check_targets(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """sqlqueue.W031: `decisions` or `notices` of `work_on` name a topic that is not declared. Runs with `check
    --database`."""
    aliases = examined(databases)
    try:
        return _undeclared(aliases[0]) if aliases else []
    except DatabaseError:  # E008 says so, or the tables are not there yet
        return []


def _undeclared(log: Log) -> list[CheckMessage]:
    try:
        declared = topics()
    except Exception:  # E010 says so
        return []
    found: list[CheckMessage] = []
    for topic, options in declared.items():
        for named in filter(None, (options.decisions, options.notices)):
            try:
                require_declared(log, named)
            except ConfigurationError as error:
                hint = f"Until that topic is declared, what people do with work items of {topic!r} is refused."
                found.append(Caution(f"work_on({topic!r}) names {named!r}: {error}", hint=hint, id="sqlqueue.W031"))
    return found
