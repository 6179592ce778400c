"""A group's active hours and limits: what its consumers' options say, unless an operator has overridden it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlqueue.core.flow import OPTIONS, Flow, checked_flow, stored
from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import ConsumerGroup


def declare(log: Log, flows: Mapping[GroupTopic, Flow]) -> None:
    """Store what consumers' options say of their groups, where it is not stored yet: the process that has started last
    decides. One statement if there is nothing to store."""
    rows = ConsumerGroup.objects.using(log.alias).filter(topic__in={topic for _group, topic in flows})
    for pk, group, topic, present in rows.values_list("pk", "consumer_group", "topic", "flow"):
        flow = flows.get((group, topic))
        if flow is not None and stored(flow) != (present or ""):
            change = rows.filter(pk=pk)
            retries.run(log, change.update, flow=stored(flow) or None)


def override(log: Log, group: str, topic: str, values: Mapping[str, Any]) -> bool:
    """Let exactly these options of a group be what is given, whatever its consumers' options say; {} takes every
    override back. Consumers follow within a second. Return whether anything has changed.

    values: as `@consumer` takes them; None: no limit. Raises ConfigurationError for an unknown option, an invalid
    value, or an unknown group.
    """
    problems = [
        f"{name!r} cannot be overridden.{did_you_mean(name, OPTIONS)}" for name in values if name not in OPTIONS
    ]
    flow = checked_flow(values, problems)
    if problems:
        raise ConfigurationError("; ".join(problems))
    text = stored(flow, [name for name in values if values[name] is None]) or None
    return retries.run(log, _override, log, group, topic, text)


def _override(log: Log, group: str, topic: str, text: str | None) -> bool:
    rows = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    row = rows.select_for_update().first()
    if row is None:
        raise ConfigurationError(f"there is no group {group!r} in topic {topic!r}")
    if row.flow_overrides == text:
        return False
    rows.update(flow_overrides=text)
    return True
