"""Compares stats with the health limits in the settings."""

from __future__ import annotations

from dataclasses import dataclass

from sqlqueue.conf import settings
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.survey import Survey


@dataclass(frozen=True, slots=True)
class Excess:
    """A health limit that is exceeded: its name, the value, and what is allowed.

    Beside the limits of SQLQUEUE['HEALTH'] there are fixed ones: no partition may have reached a limit at which nothing
    new is read (`full_partitions`, `held_partitions`); and, with topic and group "", no background task may fail again
    and again (`failing_tasks`), the database has to take writes (`failing_writes`), and consumers may write to one
    database server only (`servers`).
    """

    topic: str
    group: str
    limit: str
    value: float
    allowed: float


def excesses(survey: Survey) -> list[Excess]:
    """Return every limit that is exceeded, those of the whole queue first, then by group."""
    whole = [Excess("", "", "failing_tasks", len(survey.failing), 0)] if survey.failing else []
    if len(survey.servers) > 1:
        whole.append(Excess("", "", "servers", len(survey.servers), 1))
    if survey.writing.fails:
        whole.append(Excess("", "", "failing_writes", 1, 0))
    return whole + [excess for group in survey.groups for excess in _of_group(group)]


def _of_group(group: GroupSurvey) -> list[Excess]:
    limits = settings.reading.limits.get(group.topic, settings.reading.limits[""])
    figures = (
        ("max_lag", None if group.outside_hours else group.lag, limits.max_lag),
        ("max_age", group.waited, limits.max_age),
        ("max_dead_letters", group.dead_letters, limits.max_dead_letters),
        ("full_partitions", sum(one.why == "full" for one in group.stuck), 0),
        ("held_partitions", sum(one.why == "held" for one in group.stuck), 0),
    )
    found = [
        Excess(group.topic, group.group, name, value, allowed)
        for name, value, allowed in figures
        if value is not None and allowed is not None and value > allowed
    ]
    if limits.no_subscriber and not group.subscribers and not group.rests:
        found.append(Excess(group.topic, group.group, "no_subscriber", 0, 1))
    return found
