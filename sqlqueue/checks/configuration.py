"""Checks of the setting, what it names, and handlers; with `check --database` of what is stored of topics, too."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Caution

from sqlqueue.checks import TAG, check, check_database
from sqlqueue.conf import settings
from sqlqueue.consumers.declare.periodic import declared
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, SEPARATOR
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import topic_options
from sqlqueue.log.encoding import writer
from sqlqueue.log.topics import require_declared
from sqlqueue.models import Topic
from sqlqueue.payloads.topic_types import type_of

MOST_LISTED = 5  # topics of a warning


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


register(check_settings, TAG)


@check
def check_payload_types() -> Iterator[CheckMessage]:
    """E025: the payload type that TOPICS gives a topic cannot be imported or used, or msgspec is not installed."""
    for topic in settings.TOPICS:
        try:
            type_of(topic)
        except ConfigurationError as error:
            hint = f"Correct SQLQUEUE['TOPICS'][{topic!r}]['payload_type'], or leave it out."
            yield Error(f"topic {topic!r}: {error}", hint=hint, id="sqlqueue.E025")


@check
def check_consumers() -> Iterator[CheckMessage]:
    """E010: a `consumers` module cannot be imported or has a wrong option; E011: two handlers for one group and topic;
    E026: a periodic schedule is in SCHEDULES and in the code; W012: an atomic handler may run for hours; W013: polls
    are rarer than leases last."""
    try:
        registry.discover()
    except ConfigurationError as error:
        yield Error(str(error), hint="Correct what it names.", id="sqlqueue.E010")
        return
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        yield Error(
            f"a {settings.CONSUMERS_MODULE!r} module cannot be imported: {error!r}",
            hint=f"See {frame.filename}, line {frame.lineno}.",
            id="sqlqueue.E010",
        )
        return
    try:
        declared()
    except ConfigurationError as error:
        yield Error(str(error), hint="Names of schedules are unique.", id="sqlqueue.E026")
    for first, second in registry.duplicates:
        yield Error(
            f"{first.name} and {second.name} both handle topic {first.topic!r} for group {first.group!r}",
            hint="Give one of them another group: each group gets every message.",
            id="sqlqueue.E011",
        )
    for consumer in registry.consumers.values():
        timeout = consumer.options.visibility_timeout
        if consumer.options.atomic and timeout > 3600:
            yield Caution(
                f"{consumer.name} is atomic and may run for {timeout:g} s in one transaction",
                hint="A long transaction holds locks and the horizon; split the work, or do not make it atomic.",
                id="sqlqueue.W012",
            )
    if settings.IDLE_POLL_INTERVAL > settings.LEASE_DURATION:
        yield Caution(
            f"IDLE_POLL_INTERVAL ({settings.IDLE_POLL_INTERVAL:g} s) is longer than LEASE_DURATION",
            hint="Poll at least once in a lease.",
            id="sqlqueue.W013",
        )


@check_database
def check_fixed_options(log: Log) -> Iterator[CheckMessage]:
    """W030: a topic has other partitions or priorities than the settings say."""
    unnamed = []
    for one in topic_options.all_differences(log, topic_options.FIXED):
        if one.topic.endswith(DEAD_LETTER_SUFFIX):
            continue
        if one.option == "partitions" and one.topic not in settings.TOPICS:
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
    for schedule in settings.reading.schedules.values():
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
