"""Moving groups to another place in the log: counted, asked for, done. What queuereplay and queuegroup reset share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.log.reset import reset
from sqlqueue.management.base import QueueCommand
from sqlqueue.models import Topic
from sqlqueue.observe.replayed import Replayed, count_above


def checked_partition(topic: Topic, partition: int | None) -> int | None:
    """Return a partition that the topic has, or None."""
    if partition is not None and not 0 <= partition < topic.partitions:
        raise CommandError(f"topic {topic.name!r} has the partitions 0 to {topic.partitions - 1}, not {partition}")
    return partition


def count(alias: str, topic: str, groups: Sequence[str], target: int, partition: int | None) -> dict[str, Replayed]:
    """Return what moving each group to the target would do."""
    return {group: count_above(alias, topic, target, partition, group) for group in groups}


def show(command: QueueCommand, counts: dict[str, Replayed], target: int) -> None:
    """Print what would be done."""
    command.say(f"The next message to be read is the first above offset {target}.")
    command.table(("group", "again", "skipped"), [(group, *_words(found)) for group, found in counts.items()])


def _words(found: Replayed) -> tuple[str, str]:
    about = "~" if found.estimated else ""
    return f"{about}{found.again}", f"{about}{found.skipped}"


def move(command: QueueCommand, topic: str, counts: dict[str, Replayed], target: int, partition: int | None) -> None:
    """Move the groups, one transaction each."""
    with command.progress("move", len(counts)) as progress:
        for number, group in enumerate(counts, start=1):
            reset(command.alias, group, topic, target, partition)
            progress.reach(number)


def as_plain(counts: dict[str, Replayed], target: int, done: bool) -> dict[str, Any]:
    """Return it for JSON."""
    return {"above": target, "done": done, "groups": {group: found._asdict() for group, found in counts.items()}}
