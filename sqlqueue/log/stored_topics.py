"""The rows of topics: looked for, and added; and whether a topic may have one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.periodic import PERIODIC_TOPIC
from sqlqueue.core.shards import as_stored, from_stored
from sqlqueue.database.aside import aside
from sqlqueue.database.statements import dialect, execute
from sqlqueue.database.validation import (
    CREATE_PLACED_TOPIC,
    CREATE_TOPIC,
    STORED_PLACEMENT,
    STORED_TOPIC,
    TopicInfo,
    undeclared,
)
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import Topic


class Placement(NamedTuple):
    """What is fixed of a topic, on all shards: how many partitions and priorities it has on each, and the names of the
    shards that its keys are spread over, in order."""

    partitions: int
    priorities: int
    shards: tuple[str, ...]


def is_declared(alias: str, name: str) -> bool:
    """Tell whether a topic may be used: TOPICS names it, another setting declares it, it exists, it is that of periodic
    schedules, or STRICT_TOPICS is off. A dead-letter topic is declared with its topic."""
    return not settings.STRICT_TOPICS or is_known(alias, name)


def is_known(alias: str, name: str) -> bool:
    """Tell the same, whatever STRICT_TOPICS is."""
    own = name.removesuffix(DEAD_LETTER_SUFFIX)
    return settings.names(name) or settings.declares(own) or own == PERIODIC_TOPIC or bool(existing(alias, {name}))


def existing(alias: str, names: Collection[str]) -> set[str]:
    """Return those of the topics that exist; a dead-letter topic also counts if its topic exists."""
    own = {name: name.removesuffix(DEAD_LETTER_SUFFIX) for name in names}
    found = Topic.objects.using(alias).filter(name__in={*own, *own.values()})
    there = set(found.values_list("name", flat=True))
    return {name for name in names if name in there or own[name] in there}


def require_declared(alias: str, name: str) -> None:
    """Raise ConfigurationError for a topic that is not declared; the error suggests the nearest name."""
    if not is_declared(alias, name):
        raise undeclared(name, known(alias))


def known(alias: str) -> set[str]:
    """Return the names of the topics that exist, or that TOPICS names."""
    there = Topic.objects.using(alias).exclude(name__endswith=DEAD_LETTER_SUFFIX).values_list("name", flat=True)
    return {*settings.TOPICS, *there}


def stored(alias: str, name: str) -> TopicInfo | None:
    """Return a topic as this shard has it, None if it has not."""
    return _topic_of(execute(alias, STORED_TOPIC, (name,)))


def stored_aside(alias: str, name: str) -> TopicInfo | None:
    """Return the same as last committed: the caller's snapshot may be older than the row."""
    with aside(alias) as run:
        return _topic_of(run(STORED_TOPIC, (name,)))


def stored_placement(alias: str, name: str) -> Placement | None:
    """Return what this shard says of a topic, as last committed; None if it has no such topic."""
    with aside(alias) as run:
        return _placement_of(alias, run(STORED_PLACEMENT, (name,)))


def repeated_placement(alias: str, name: str) -> Placement | None:
    """Return what a shard beside DATABASE's repeats of a topic; None if it has no such topic, or one of the time when
    it was a queue of its own."""
    with aside(alias) as run:
        row = run(STORED_PLACEMENT, (name,)).fetchone()
    return Placement(row[0], row[1], from_stored(row[2])) if row and row[2] else None


def stored_placements(alias: str) -> dict[str, Placement]:
    """Return what this shard says of all its topics, by name."""
    rows = Topic.objects.using(alias).values_list("name", "partitions", "priorities", "shards")
    here = settings.shard_name(alias)
    return {
        name: Placement(partitions, priorities, from_stored(shards) or (here,))
        for name, partitions, priorities, shards in rows
    }


def missing_shards(shards: Collection[str]) -> list[str]:
    """Return those of a topic's stored shards that SHARDS does not name, or not any more."""
    return [shard for shard in shards if shard and shard not in settings.shards]


def refuse_missing(name: str, shards: Collection[str]) -> None:
    """Raise ConfigurationError for a topic that is on a shard which SHARDS does not name: its keys would move."""
    if missing := missing_shards(shards):
        raise ConfigurationError(
            f"topic {name!r} has messages on shard {missing[0]!r}, which SQLQUEUE['SHARDS'] does not have: name it "
            "there"
        )


def insert(alias: str, name: str, partitions: int | None) -> TopicInfo:
    """Insert a topic's row if there is none, and return what is stored.

    Inside a caller's transaction it uses a separate connection, so that a long transaction which happens to publish
    first does not hold up other publishers of the topic.
    """
    info = None
    with aside(alias) as run:
        while info is None:  # a row that was there may be dropped before it is read
            run(CREATE_TOPIC + dialect(alias).ignore("name"), _values(name, partitions))
            # Here, for the caller's snapshot may be older than the row.
            info = _topic_of(run(STORED_TOPIC, (name,)))
    return info


def insert_placed(alias: str, name: str, placed: Placement) -> Placement:
    """Insert the row of a topic of several shards if there is none, and return what is stored."""
    name, _, _, *rest = _values(name, None)
    values = (name, placed.partitions, placed.priorities, *rest, as_stored(placed.shards))
    found = None
    with aside(alias) as run:
        while found is None:  # as in `insert`
            run(CREATE_PLACED_TOPIC + dialect(alias).ignore("name"), values)
            found = _placement_of(alias, run(STORED_PLACEMENT, (name,)))
    return found


def _topic_of(cursor: Any) -> TopicInfo | None:
    row = cursor.fetchone()
    if not row:
        return None
    *fixed, shards = row
    refuse_missing(fixed[0], from_stored(shards))
    return TopicInfo(*fixed)


def _placement_of(alias: str, cursor: Any) -> Placement | None:
    row = cursor.fetchone()
    if not row:
        return None
    partitions, priorities, shards = row
    return Placement(partitions, priorities, from_stored(shards) or (settings.shard_name(alias),))


def _values(name: str, partitions: int | None) -> tuple[Any, ...]:
    options = settings.topic(name)
    # Dead letters are kept until an operator replays or discards them.
    retention = None if name.endswith(DEAD_LETTER_SUFFIX) else options.retention
    return name, partitions or options.partitions, options.priorities, retention, options.history
