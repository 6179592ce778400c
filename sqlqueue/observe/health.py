"""Whether the queue is well: the survey's figures held against the limits in the settings."""

from __future__ import annotations

from dataclasses import dataclass

from sqlqueue.conf import settings
from sqlqueue.observe.survey import GroupSurvey, Survey


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit of SQLQUEUE['HEALTH'] that a group has passed: its name, the group's figure, and what is allowed. None is
    allowed, whatever the settings are, of partitions in which so many messages fail (`full_partitions`), or were
    delivered beyond an open transaction (`held_partitions`), that nothing new is read, nor, of no topic and group, of
    background tasks that fail again and again (`failing_tasks`); and one of `servers` that consumers write to."""

    topic: str
    group: str
    limit: str
    value: float
    allowed: float


def excesses(survey: Survey) -> list[Excess]:
    """Return every limit that is passed, in the order of the survey."""
    whole = [Excess("", "", "failing_tasks", len(survey.failing), 0)] if survey.failing else []
    if len(survey.servers) > 1:
        whole.append(Excess("", "", "servers", len(survey.servers), 1))
    return whole + [excess for group in survey.groups for excess in _of_group(group)]


def _of_group(group: GroupSurvey) -> list[Excess]:
    limits = settings.limits(group.topic)
    figures = (
        ("max_lag", group.lag, limits.max_lag),
        ("max_age", group.oldest_age, limits.max_age),
        ("max_dead_letters", group.dead_letters, limits.max_dead_letters),
        ("full_partitions", sum(one.why == "full" for one in group.stuck), 0),
        ("held_partitions", sum(one.why == "held" for one in group.stuck), 0),
    )
    found = [
        Excess(group.topic, group.group, name, value, allowed)
        for name, value, allowed in figures
        if value is not None and allowed is not None and value > allowed
    ]
    if limits.no_subscriber and not group.subscribers and not group.paused:
        found.append(Excess(group.topic, group.group, "no_subscriber", 0, 1))
    return found
