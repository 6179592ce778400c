"""Preview and carry out a move of groups to another offset: what `queuegroup rewind` and `queuegroup skip` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.core.epochs import numbers_of
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.management.base import QueueCommand
from sqlqueue.models import ConsumerGroup, Topic
from sqlqueue.operations.move import check_part, move
from sqlqueue.stats.rewind_preview import RewindPreview, count_above
from sqlqueue.stats.texts import about


def checked_partition(log: Log, topic: Topic, partition: int | None) -> int | None:
    """Return the partition, by its number in the log; raise CommandError if no epoch of the topic has it. None stays
    None."""
    if partition is None:
        return None
    epochs = layouts.epochs(log, topic.name)
    if partition not in numbers_of(epochs):
        ranges = ", ".join(f"{epoch.numbers[0]} to {epoch.numbers[-1]}" for epoch in epochs)
        raise CommandError(f"topic {topic.name!r} has the partitions {ranges}, not {partition}")
    return partition


class Moves:
    """A move of a topic's groups to the offset `target`, above which they read next, with a preview of each group.
    Raises ConfigurationError for one that check_part refuses, before any is moved."""

    def __init__(self, log: Log, topic: str, groups: Sequence[str], target: int, partition: int | None):
        for one in ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group__in=groups):
            check_part(log, one, target, partition)
        self.topic, self.target, self.partition = topic, target, partition
        self.previews = {group: count_above(log, topic, target, partition, group) for group in groups}

    def show(self, command: QueueCommand) -> None:
        """Print the preview."""
        command.say(f"The next message to be read is the first above offset {self.target}.")
        rows = [(group, *_counts(preview)) for group, preview in self.previews.items()]
        command.table(("group", "again", "skipped"), rows)

    def carry_out(self, command: QueueCommand, forward_only: bool) -> None:
        """Move the groups, one transaction each. forward_only: refuse those that have read further meanwhile."""
        with command.progress("move", len(self.previews)) as progress:
            for number, group in enumerate(self.previews, start=1):
                move(command.log, group, self.topic, self.target, self.partition, forward_only=forward_only)
                progress.reach(number)

    def as_plain(self, done: bool) -> dict[str, Any]:
        """Return the previews as a dict for JSON; done: the groups were moved."""
        groups = {group: preview._asdict() for group, preview in self.previews.items()}
        return {"above": self.target, "done": done, "groups": groups}


def _counts(preview: RewindPreview) -> tuple[str, str]:
    return about(preview.again, preview.estimated), about(preview.skipped, preview.estimated)
