"""HEALTH: the values beyond which the queue is not well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlqueue.core.bounds import CENTURY, duration
from sqlqueue.core.keys import checked_topic, did_you_mean
from sqlqueue.exceptions import ConfigurationError


@dataclass(frozen=True)
class HealthLimits:
    """Values beyond which the health endpoint answers 503 for a group. max_lag: messages; max_age: seconds for which
    the oldest one waits; max_dead_letters; no_subscriber: no process serves the group, and it is neither paused nor
    outside its active hours, in which alone the first two count. None and
    False: no limit."""

    max_lag: int | None = None
    max_age: float | None = None
    max_dead_letters: int | None = None
    no_subscriber: bool = False


def health_limits(given: Any, problems: list[str]) -> dict[str, HealthLimits]:
    """Return the limits of HEALTH: by topic, and under "" those of topics that it does not name."""
    if not isinstance(given, Mapping):
        problems.append(f"HEALTH must be a dict, not {given!r}")
        return {}
    named = given.get("topics", {})
    if not isinstance(named, Mapping):
        problems.append(f"HEALTH['topics'] must be a dict of topic names to limits, not {named!r}")
        named = {}
    general = _parse_limits({name: value for name, value in given.items() if name != "topics"}, {}, "HEALTH", problems)
    found = {"": HealthLimits(**general)}
    for topic, own in named.items():
        try:
            checked_topic(topic)
        except ConfigurationError as error:
            problems.append(str(error))
        found[topic] = HealthLimits(**_parse_limits(own, general, f"HEALTH['topics'][{topic!r}]", problems))
    return found


def _parse_limits(given: Any, general: dict[str, Any], path: str, problems: list[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        problems.append(f"{path} must be a dict, not {given!r}")
        return general
    known = {field.name for field in fields(HealthLimits)}
    values: dict[str, Any] = dict(general)
    for name, value in given.items():
        if name not in known:
            also = {"topics"} if path == "HEALTH" else set()
            problems.append(f"{path} has no option {name!r}.{did_you_mean(str(name), known | also)}")
        elif name == "no_subscriber":
            if not isinstance(value, bool):
                problems.append(f"{path}[{name!r}] must be True or False, not {value!r}")
            values[name] = bool(value)
        elif value is None:
            values[name] = None
        elif name == "max_age":
            values[name] = duration(value, f"{path}[{name!r}]", problems, 0, CENTURY)
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            problems.append(f"{path}[{name!r}] must be a whole number, not negative, or None, not {value!r}")
        else:
            values[name] = value
    return values
