"""System checks of what is stored of topics, against the settings. They run with `check --database`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.db import Error as DatabaseError

from sqlqueue.checks import TAG, examined
from sqlqueue.conf import settings
from sqlqueue.consumers.registry import registry
from sqlqueue.core.databases import SEPARATOR, as_stored
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import topic_options
from sqlqueue.log.stored_topics import require_declared
from sqlqueue.models import Topic

MOST_LISTED = 5  # topics of a warning


@register(TAG, Tags.database)
def check_topics(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W030: a topic has other partitions or priorities than the settings say; W031: a consumer or a schedule of
    SCHEDULES needs a topic that is not declared. Runs with `check
    --database`."""
    aliases = examined(databases)
    if not aliases:
        return []
    try:
        found = [message for log in aliases[:1] for message in (*_fixed_options(log), *_undeclared(log))]
        return found + [message for log in aliases for message in _of_databases(log)]
    except DatabaseError:  # E008 says so, or the tables are not there yet
        return []


def _of_databases(log: Log) -> list[CheckMessage]:
    """E029: a topic was first used on other databases than the settings say."""
    found: list[CheckMessage] = []
    rows = Topic.objects.using(log.alias).exclude(name__endswith=DEAD_LETTER_SUFFIX).order_by("name")
    for name, databases in rows.values_list("name", "databases"):
        wanted = settings.databases_of(name)
        if log.alias in wanted and databases != as_stored(wanted):
            was = databases.replace(SEPARATOR, ", ") or log.alias
            said = ", ".join(wanted)
            text = f"topic {name!r} was first used on {was}, and the settings say {said}: publishing is refused"
            hint = f"Name the former ones in SQLQUEUE['TOPICS'][{name!r}]['databases']: the topic's keys would move."
            found.append(Error(text, hint=hint, id="sqlqueue.E029"))
    return found


def _fixed_options(log: Log) -> Iterator[CheckMessage]:
    found = topic_options.all_differences(log, topic_options.FIXED)
    differences = [one for one in found if not one.topic.endswith(DEAD_LETTER_SUFFIX)]
    unnamed = [one for one in differences if not settings.names(one.topic) and one.option == "partitions"]
    for one in differences:
        if one not in unnamed:
            text = f"topic {one.topic!r} has {one.stored} {one.option}, and the settings say {one.wanted}"
            hint = f"They cannot be changed yet: say {one.stored} in SQLQUEUE['TOPICS'][{one.topic!r}][{one.option!r}]."
            if one.option == "partitions":
                hint = (
                    f"Say {one.stored} in SQLQUEUE['TOPICS'][{one.topic!r}][{one.option!r}], or change the topic: "
                    f"`queuetopic alter {one.topic} --partitions {one.wanted}`."
                )
            yield Caution(text, hint=hint, id="sqlqueue.W030")
    if unnamed:
        some = ", ".join(f"{one.topic!r} {one.stored}" for one in unnamed[:MOST_LISTED])
        more = f" and {len(unnamed) - MOST_LISTED} more" if len(unnamed) > MOST_LISTED else ""
        text = f"PARTITIONS is {settings.PARTITIONS}, and topics that TOPICS does not name have others: {some}{more}"
        hint = (
            "PARTITIONS is for new topics: name those in TOPICS, with what they have, or change them with `queuetopic"
            " alter … --partitions`."
        )
        yield Caution(text, hint=hint, id="sqlqueue.W030")


def _undeclared(log: Log) -> Iterator[CheckMessage]:
    try:
        registry.discover()
    except Exception:  # E010 says so
        return
    for consumer in registry.consumers.values():
        try:
            require_declared(log, consumer.topic)
        except ConfigurationError as error:
            hint = "Until the topic is declared the consumer has nothing to read; it begins once it is."
            yield Caution(f"{consumer.name} consumes nothing: {error}", hint=hint, id="sqlqueue.W031")
    for schedule in settings.schedules().values():
        try:
            require_declared(log, schedule.topic)
        except ConfigurationError as error:
            hint = "Until the topic is declared its ticks are refused; what falls due meanwhile counts as missed."
            yield Caution(f"schedule {schedule.name!r} publishes nothing: {error}", hint=hint, id="sqlqueue.W031")
