"""TOPICS: the options of a topic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_origin

from sqlqueue.core.bounds import CENTURY, SHORTEST, WEEK, duration, whole
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, checked_topic, did_you_mean
from sqlqueue.core.periodic import PERIODIC_TOPIC
from sqlqueue.core.setting.databases import topic_databases
from sqlqueue.core.unique_for import checked_unique_for
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

HISTORIES = ("none", "failures", "all")
PUBLISHED, ACKED = "published", "acked"
MOST_PARTITIONS = 10_000
MOST_PRIORITIES = 100
MOST_WEIGHT = 10_000
MOST_VERSIONS = 10_000
DOTTED_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


@dataclass(frozen=True)
class TopicOptions:
    """A topic's options. retention: seconds to keep a message after it was published, even if every group has acked it;
    None keeps it for ever. history: which receipts are written (none, failures, all). priority_weights: of each
    priority, the most urgent first: its share of the deliveries while more urgent messages wait, too; None: a twentieth
    for all but the first together. payload_type: a class or its dotted path, None for any JSON; payload_version: what
    messages are published with, None for the type's own. unique_for: for how many seconds a pending message keeps
    others of its key out, infinity for as long as it is pending; None: not at all. retention_from: from when retention
    counts: from publishing, or (acked) from when the last group had settled it. keep_collected: for how many seconds
    collected messages are kept in a table of their own; None: not at all. databases: the aliases of those that its
    keys are spread over; (): DATABASE alone."""

    partitions: int = 32
    priorities: int = 1
    retention: float | None = WEEK
    history: str = "failures"
    payload_type: Any = None
    payload_version: int | None = None
    priority_weights: Sequence[int] | None = None
    unique_for: float | None = None
    retention_from: str = PUBLISHED
    keep_collected: float | None = None
    databases: Sequence[str] = ()


def topics(given: Any, defaults: TopicOptions, problems: list[str]) -> dict[str, TopicOptions]:
    """Return the options of the topics that TOPICS names. defaults: of what it does not say."""
    found: dict[str, TopicOptions] = {}
    if not isinstance(given, Mapping):
        problems.append(f"TOPICS must be a dict of topic names to options, not {given!r}")
        return found
    known = {field.name for field in fields(TopicOptions)}
    for topic, own in given.items():
        try:
            checked_topic(topic)
        except ConfigurationError as error:
            problems.append(str(error))
        if not isinstance(own, Mapping):
            problems.append(f"TOPICS[{topic!r}] must be a dict, not {own!r}")
            continue
        unknown = [name for name in own if name not in known]
        problems += [f"TOPICS[{topic!r}] has no option {name!r}.{did_you_mean(str(name), known)}" for name in unknown]
        partitions = 1 if topic == PERIODIC_TOPIC else defaults.partitions
        values: dict[str, Any] = {
            "partitions": partitions,
            "retention": defaults.retention,
            "history": defaults.history,
        }
        values.update({name: value for name, value in own.items() if name in known})
        if values["retention"] is not None:
            values["retention"] = duration(values["retention"], f"TOPICS[{topic!r}]['retention']", problems, 0, CENTURY)
        since = values.get("retention_from", PUBLISHED)
        if since not in (PUBLISHED, ACKED):
            problems.append(f"TOPICS[{topic!r}]['retention_from'] must be {PUBLISHED!r} or {ACKED!r}, not {since!r}")
        kept = values.get("keep_collected")
        if kept is not None:
            values["keep_collected"] = duration(
                kept, f"TOPICS[{topic!r}]['keep_collected']", problems, SHORTEST, CENTURY
            )
        whole(values["partitions"], f"TOPICS[{topic!r}]['partitions']", MOST_PARTITIONS, problems)
        whole(values.get("priorities", 1), f"TOPICS[{topic!r}]['priorities']", MOST_PRIORITIES, problems)
        _check_weights(topic, values, problems)
        if str(topic).endswith(DEAD_LETTER_SUFFIX) and own.get("retention") is not None:
            problems.append(
                f"TOPICS[{topic!r}]['retention'] cannot be: dead letters are kept until they are replayed or discarded"
            )
        if values["history"] not in HISTORIES:
            problems.append(f"TOPICS[{topic!r}]['history'] must be one of {', '.join(HISTORIES)}")
        if values.get("payload_version") is not None:
            whole(values["payload_version"], f"TOPICS[{topic!r}]['payload_version']", MOST_VERSIONS, problems)
        if not _may_be_a_type(values.get("payload_type")):
            problems.append(
                f"TOPICS[{topic!r}]['payload_type'] must be a class or its dotted path, not {values['payload_type']!r}"
            )
        values["databases"] = topic_databases(topic, values.get("databases"), problems)
        values["unique_for"] = _unique_for(topic, values.get("unique_for"), problems)
        found[topic] = TopicOptions(**values)
    return found


def _check_weights(topic: object, values: Mapping[str, Any], problems: list[str]) -> None:
    weights, name = values.get("priority_weights"), f"TOPICS[{topic!r}]['priority_weights']"
    if weights is None:
        return
    if not isinstance(weights, (list, tuple)):
        problems.append(f"{name} must be a list, with a weight for each priority, not {weights!r}")
        return
    priorities = values.get("priorities", 1)
    if len(weights) != priorities:
        problems.append(f"{name} has {len(weights)} weights, and 'priorities' is {priorities}: give each its weight")
    for weight in weights:
        whole(weight, f"a weight in {name}", MOST_WEIGHT, problems)


def _unique_for(topic: object, value: Any, problems: list[str]) -> float | None:
    if value is None:
        return None
    try:
        return checked_unique_for(value)
    except InvalidMessage:
        form = "must be 'key', or seconds (a number or a timedelta) from a millisecond to ten years"
        problems.append(f"TOPICS[{topic!r}]['unique_for'] {form}, not {value!r}")
        return None


def _may_be_a_type(value: Any) -> bool:
    if isinstance(value, str):
        return DOTTED_PATH.fullmatch(value) is not None
    return value is None or value is Any or isinstance(value, type) or get_origin(value) is not None
