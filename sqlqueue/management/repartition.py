"""The change of a topic's partitions, as the command shows it."""

from __future__ import annotations

import time
from typing import Any, Final

from django.core.management.base import CommandError

from sqlqueue.database.log import Log
from sqlqueue.log.change_state import (
    END,
    GATE,
    KEYS,
    LAST,
    TRANSACTIONS,
    Change,
    Progress,
    under_way,
)
from sqlqueue.log.layouts import epochs
from sqlqueue.management.base import QueueCommand
from sqlqueue.models import ConsumerGroup
from sqlqueue.operations import repartition
from sqlqueue.operations.layout_changes import open_block
from sqlqueue.operations.repartition import Repartition

TOLD: Final = {
    GATE: "Publishers learn of the new partitions",
    KEYS: "Keys go over to the new partitions",
    TRANSACTIONS: "Transactions that published before the change have to end",
    END: "The end of the former partitions is read",
    LAST: "Publishers go on with the new partitions alone",
}
OFTEN, SELDOM = 0.1, 1.0  # seconds between two steps, or two looks at who has to be gone before the first


def alter(command: QueueCommand, topic: str, options: dict[str, Any]) -> None:
    """Change a topic's partitions, carry on a change that was interrupted, or abort it."""
    log = command.log
    change = under_way(log)
    if options["abort"]:
        _abort(command, topic, change, options["dry_run"])
        return
    partitions = options["partitions"]
    mine = change is not None and change.topic == topic and change.going
    if change is not None and not change.going and not options["dry_run"]:
        carry_on(command)  # all keys have gone over, and not all publishers know that
        if change.topic == topic and change.later.partitions == partitions:
            command.say(f"Topic {topic!r} has {partitions} partitions.", done=True)
            return
    elif change is not None and change.going and not (mine and change.later.partitions == partitions):
        raise CommandError(
            f"topic {change.topic!r} is being changed to {change.later.partitions} partitions, and one change at a time"
            f" is made: `queuetopic alter {change.topic} --partitions {change.later.partitions}` carries it on"
        )
    present = open_block(log, topic)
    if not mine and present.partitions == partitions:
        if not command.on_several:
            raise CommandError(f"topic {topic!r} has {partitions} partitions already")
        command.say(f"Topic {topic!r} has {partitions} partitions already.")
        return
    before = change.earlier.partitions if mine and change is not None else present.partitions
    _explain(command, topic, before, partitions)
    if options["dry_run"]:
        command.say("Nothing was done.")
        return
    if mine:
        command.say("It was begun before, and is carried on.")
    else:
        if not command.proceed(options, f"Change topic {topic!r} to {partitions} partitions?"):
            return
        repartition.begin(log, topic, partitions)
    carry_on(command)
    command.say(
        f"Topic {topic!r} has {partitions} partitions. Each group begins them when it has settled what is in the former"
        " ones.",
        done=True,
    )


def _explain(command: QueueCommand, topic: str, before: int, partitions: int) -> None:
    command.say(
        f"Topic {topic!r}: {before} partitions become {partitions} others. New messages go to those; what is in the"
        f" former ones stays there, and {_groups(command.log, topic)} there first."
    )
    for one in epochs(command.log, topic)[:-1]:
        if one.end is not None:
            command.note(f"partitions of a former change, {one.partitions} of them, are still being settled")


def _groups(log: Log, topic: str) -> str:
    names = ConsumerGroup.objects.using(log.alias).filter(topic=topic).order_by("consumer_group")
    return ", ".join(names.values_list("consumer_group", flat=True)) + " end" if names else "any group ends"


def carry_on(command: QueueCommand) -> None:
    """Carry on the change that is under way on the database of a command, and say how far it is."""
    told = ""
    began = time.monotonic()
    for progress in Repartition(command.log).run(0):
        if progress.stage != told:
            told, began = progress.stage, time.monotonic()
            command.say(f"{TOLD[told]}.")
        elif progress.left and time.monotonic() > began + 10:
            began = time.monotonic()
            command.say(waiting(progress))
        command.pause(OFTEN if progress.left else 0)


def waiting(progress: Progress) -> str:
    """Return what a step waits for."""
    what = f"{progress.left} transactions that have published are still open."
    if progress.stage != TRANSACTIONS:
        parts = "keys" if progress.stage == KEYS else "publishers"
        what = f"{progress.left} parts of the {parts} are held by transactions that have published and are still open."
    return f"{what} They hold up nothing but this change, which other processes carry on if this one is ended."


def _abort(command: QueueCommand, topic: str, change: Change | None, dry_run: bool) -> None:
    if dry_run:
        going = change is not None and change.topic == topic and change.going
        command.say(f"{'A' if going else 'No'} change of topic {topic!r} is under way. Nothing was done.")
        return
    if command.on_several and (change is None or change.topic != topic or not change.going):
        command.say(f"No change of topic {topic!r} is under way.")
        return
    repartition.abort(command.log, topic)
    carry_on(command)
    command.say(f"Topic {topic!r} stays with its partitions.", done=True)
