"""Checks of what is stored of topics, against the settings. They run with `check --database`."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution

from sqlqueue.checks import check_database
from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.core.databases import SEPARATOR
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import topic_options
from sqlqueue.log.topics import require_declared
from sqlqueue.models import Topic

MOST_LISTED = 5  # topics of a warning


@check_database
def check_fixed_options(log: Log) -> Iterator[CheckMessage]:
    """W030: a topic has other partitions or priorities than the settings say."""
    unnamed = []
    for one in topic_options.all_differences(log, topic_options.FIXED):
        if one.topic.endswith(DEAD_LETTER_SUFFIX):
            continue
        if one.option == "partitions" and not settings.names(one.topic):
            unnamed.append(f"{one.topic!r} {one.stored}")
            continue
        where = f"in SQLQUEUE['TOPICS'][{one.topic!r}][{one.option!r}]"
        hint = f"They cannot be changed yet: say {one.stored} {where}."
        if one.option == "partitions":
            alter = f"`queuetopic alter {one.topic} --partitions {one.wanted}`"
            hint = f"Say {one.stored} {where}, or change the topic: {alter}."
        text = f"topic {one.topic!r} has {one.stored} {one.option}, and the settings say {one.wanted}"
        yield Caution(text, hint=hint, id="sqlqueue.W030")
    if unnamed:
        some = ", ".join(unnamed[:MOST_LISTED])
        more = f" and {len(unnamed) - MOST_LISTED} more" if len(unnamed) > MOST_LISTED else ""
        yield Caution(
            f"PARTITIONS is {settings.PARTITIONS}, and topics that TOPICS does not name have others: {some}{more}",
            hint="PARTITIONS is for new topics: name those in TOPICS, with what they have, or change them with "
            "`queuetopic alter … --partitions`.",
            id="sqlqueue.W030",
        )


@check_database
def check_declared(log: Log) -> Iterator[CheckMessage]:
    """W031: a consumer or a schedule of SCHEDULES needs a topic that is not declared."""
    if log is not home_log():  # which has the topics that no setting declares
        return
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


@check_database
def check_placement(log: Log) -> Iterator[CheckMessage]:
    """E029: a topic was first used on other databases than the settings say."""
    rows = Topic.objects.using(log.alias).exclude(name__endswith=DEAD_LETTER_SUFFIX).order_by("name")
    for name, databases in rows.values_list("name", "databases"):
        wanted = settings.databases_of(name)
        if log.alias in wanted and databases != settings.stored_databases(name):
            was = databases.replace(SEPARATOR, ", ") or log.alias
            yield Error(
                f"topic {name!r} was first used on {was}, and the settings say {', '.join(wanted)}: publishing is "
                "refused",
                hint=f"Name the former ones in SQLQUEUE['TOPICS'][{name!r}]['databases']: the topic's keys would move.",
                id="sqlqueue.E029",
            )
