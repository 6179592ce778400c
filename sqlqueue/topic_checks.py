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
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import topic_options
from sqlqueue.log.stored_topics import Placement, missing_shards, require_declared, stored_placements

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
        found = [message for alias in aliases[:1] for message in (*_fixed_options(alias), *_undeclared(alias))]
        return found + _of_placements(aliases)
    except DatabaseError:  # E008 says so, or the tables are not there yet
        return []


def _agree(name: str, said: Sequence[Placement]) -> bool:
    """Tell whether shards say the same of a topic. One of dead letters follows its own topic."""
    if name.endswith(DEAD_LETTER_SUFFIX):
        return len({one[:2] for one in said}) == 1
    return len(set(said)) == 1


def _of_placements(aliases: Sequence[str]) -> list[CheckMessage]:
    """E029: two shards say different things of a topic, or it is on one that SHARDS does not name; W030: a topic is on
    other shards than the settings say."""
    placements = {alias: stored_placements(alias) for alias in aliases}
    found: list[CheckMessage] = []
    for name in sorted({name for each in placements.values() for name in each}):
        said = {alias: each[name] for alias, each in placements.items() if name in each}
        if not _agree(name, list(said.values())):
            text = f"the shards differ over topic {name!r}: " + "; ".join(
                f"{settings.shard_name(alias)!r} says {one.partitions} partitions, {one.priorities} priorities, shards"
                f" {', '.join(one.shards)}"
                for alias, one in said.items()
            )
            hint = (
                "A shard was a queue of its own before: drain and drop the topic there, or name in "
                "SQLQUEUE['DATABASE'] the shard that it was made on."
            )
            found.append(Error(text, hint=hint, id="sqlqueue.E029"))
            continue
        shards = next(iter(said.values())).shards
        if missing := missing_shards(shards):
            text = f"topic {name!r} is on shard {missing[0]!r}, which SQLQUEUE['SHARDS'] does not have"
            hint = "Name it there again: without it, the topic's keys would move to other shards."
            found.append(Error(text, hint=hint, id="sqlqueue.E029"))
            continue
        wanted = settings.shards_of(name) if settings.sharded else shards
        if wanted != shards and not name.endswith(DEAD_LETTER_SUFFIX):
            text = f"topic {name!r} is on the shards {', '.join(shards)}, and the settings say {', '.join(wanted)}"
            hint = f"They cannot be changed: say {list(shards)} in SQLQUEUE['TOPICS'][{name!r}]['shards']."
            found.append(Caution(text, hint=hint, id="sqlqueue.W030"))
    return found


def _fixed_options(alias: str) -> Iterator[CheckMessage]:
    found = topic_options.all_differences(alias, topic_options.FIXED)
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


def _undeclared(alias: str) -> Iterator[CheckMessage]:
    try:
        registry.discover()
    except Exception:  # E010 says so
        return
    for consumer in registry.consumers.values():
        try:
            require_declared(alias, consumer.topic)
        except ConfigurationError as error:
            hint = "Until the topic is declared the consumer has nothing to read; it begins once it is."
            yield Caution(f"{consumer.name} consumes nothing: {error}", hint=hint, id="sqlqueue.W031")
    for schedule in settings.schedules().values():
        try:
            require_declared(alias, schedule.topic)
        except ConfigurationError as error:
            hint = "Until the topic is declared its ticks are refused; what falls due meanwhile counts as missed."
            yield Caution(f"schedule {schedule.name!r} publishes nothing: {error}", hint=hint, id="sqlqueue.W031")
