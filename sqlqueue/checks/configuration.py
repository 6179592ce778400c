"""Checks of the setting, of what it names, and of handlers."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Caution

from sqlqueue.checks import TAG, check
from sqlqueue.conf import settings
from sqlqueue.consumers.declare.periodic import declared
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.encoding import writer
from sqlqueue.payloads.topic_types import type_of


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
