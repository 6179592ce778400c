"""System checks of people's work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Caution

from sqlqueue.checks import TAG, check_database
from sqlqueue.contrib.people.topics import retention, topics
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.topics import require_declared


@register(TAG)
def check_retention(**kwargs: Any) -> list[CheckMessage]:
    """sqlqueue_people.E001: the setting SQLQUEUE_PEOPLE is wrong."""
    try:
        retention()
    except ConfigurationError as error:
        return [Error(str(error), hint="docs/people.md has its option.", id="sqlqueue_people.E001")]
    return []


@check_database
def check_targets(log: Log) -> Iterator[CheckMessage]:
    """sqlqueue.W031: `decisions` or `notices` of `work_on` name a topic that is not declared."""
    if log is not home_log():
        return
    try:
        declared = topics()
    except Exception:  # E010 says so
        return
    for topic, options in declared.items():
        for named in filter(None, (options.decisions, options.notices)):
            try:
                require_declared(log, named)
            except ConfigurationError as error:
                hint = f"Until that topic is declared, what people do with work items of {topic!r} is refused."
                yield Caution(f"work_on({topic!r}) names {named!r}: {error}", hint=hint, id="sqlqueue.W031")
