"""The change of a topic's partitions, as the command shows it."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.log import layouts
from sqlqueue.log.layout_changes import Change, under_way
from sqlqueue.log.layouts import epochs
from sqlqueue.management.base import QueueCommand
from sqlqueue.models import ConsumerGroup
from sqlqueue.operations import repartition
from sqlqueue.stats.changes import progress_text

STEP_PAUSE, SAY_AGAIN = 0.1, 10.0  # seconds between two steps, and between two texts of what they wait for


def alter(command: QueueCommand, topic: str, options: dict[str, Any]) -> None:
    """Change a topic's partitions, or carry on a change that was interrupted."""
    log, partitions = command.log, options["partitions"]
    change = under_way(log)
    question = ""
    if change is not None and (change.topic, change.later.partitions) == (topic, partitions):
        command.say("It was begun before, and is carried on.")
    else:
        before = layouts.epochs(log, topic)[-1].partitions
        if before == partitions and command.on_several:
            command.say(f"Topic {topic!r} has {partitions} partitions already.")
            return
        if before == partitions:
            raise CommandError(f"topic {topic!r} has {partitions} partitions already")
        _explain(command, topic, before, partitions)
        question = f"Change topic {topic!r} to {partitions} partitions?"
    if not command.proceed(options, question):
        return
    if question:
        repartition.begin(log, topic, partitions)
    _carry_on(command)
    command.done(
        f"Topic {topic!r} has {partitions} partitions. Each group begins them when it has settled what is in the former"
        " ones."
    )


def abort(command: QueueCommand, topic: str, options: dict[str, Any]) -> None:
    """Let a topic stay with its partitions while its change is under way."""
    change: Change | None = under_way(command.log)
    going = change is not None and change.topic == topic and change.going
    if options["dry_run"] or (command.on_several and not going):
        command.say(f"{'A' if going else 'No'} change of topic {topic!r} is under way. Nothing was done.")
        return
    repartition.abort(command.log, topic)
    _carry_on(command)
    command.done(f"Topic {topic!r} stays with its partitions.")


def _explain(command: QueueCommand, topic: str, before: int, partitions: int) -> None:
    groups = ConsumerGroup.objects.using(command.log.alias).filter(topic=topic).order_by("consumer_group")
    names = ", ".join(groups.values_list("consumer_group", flat=True))
    command.say(
        f"Topic {topic!r}: {before} partitions become {partitions} others. New messages go to those; what is in the"
        f" former ones stays there, and {f'{names} end' if names else 'any group ends'} there first."
    )
    for one in epochs(command.log, topic)[:-1]:
        if one.end is not None:
            command.note(f"partitions of a former change, {one.partitions} of them, are still being settled")


def _carry_on(command: QueueCommand) -> None:
    """Carry on the change that is under way on the database of a command, and say what it waits for."""
    stage, say_at = "", 0.0
    for progress in repartition.Repartition(command.log).run(0):
        if progress.left and (progress.stage != stage or time.monotonic() > say_at):
            stage, say_at = progress.stage, time.monotonic() + SAY_AGAIN
            command.say(f"{progress_text(progress)} This holds up nothing else, and other processes carry it on, too.")
        command.pause(STEP_PAUSE if progress.left else 0)
