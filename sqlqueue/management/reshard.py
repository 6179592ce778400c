"""The change of a topic's shards, as the command shows it."""

from __future__ import annotations

import time
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.log.change_state import under_way
from sqlqueue.log.layouts import epochs
from sqlqueue.log.reshard_state import answering, stored_spread, taking_part
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.repartition import OFTEN, SELDOM, TOLD, carry_on, waiting
from sqlqueue.models import ConsumerGroup, Message, ScheduledMessage, Topic
from sqlqueue.operations import reshard
from sqlqueue.operations.former_versions import SAME_SHARDS, former_subscribers
from sqlqueue.operations.reshard import Reshard, ShardProgress

TOLD_AGAIN = 10  # seconds


def alter(command: QueueCommand, topic: str, options: dict[str, Any]) -> None:
    """Spread a topic over other shards, or carry on a change that was interrupted."""
    wanted = [name.strip() for name in options["shards"].split(",") if name.strip()]
    before = stored_spread(settings.home, topic)
    after = reshard.checked(topic, wanted)
    names = ", ".join(after.coming or ())
    command.say(
        f"Topic {topic!r}: its keys are on {', '.join(after.present)}, and will be on {names}. What is in the log stays"
        " where it is, and each group ends it there first."
    )
    for alias in taking_part(after):
        _explain(command, alias, topic)
    if options["dry_run"]:
        command.say("Nothing was done.")
        return
    if before.coming is not None:
        command.say("It was begun before, and is carried on.")
    else:
        command.confirm(f"Spread topic {topic!r} over {names}?", options)
        for alias in taking_part(after):
            _wait_for_former(command, alias)
        reshard.begin(topic, wanted)
    _carry_on(command, topic)
    removed = sorted({*after.present} - {*(after.coming or ())})
    command.say(f"Topic {topic!r} is on {names}.", done=True)
    if removed:
        command.say(
            f"Groups settle what {', '.join(removed)} still has: keep consumers there until `queuestatus {topic}` shows"
            " no lag, and nothing is scheduled or relayed there."
        )


def abort(command: QueueCommand, topic: str) -> bool:
    """Abort the change of a topic's shards, if one is under way; tell whether one was."""
    if stored_spread(settings.home, topic).coming is not None:
        reshard.abort(topic)
    change = under_way(command.alias)
    if change is None or change.topic != topic or not (change.shards or not change.going):
        return False
    carry_on(command)
    command.say(f"Topic {topic!r} stays on its shards.", done=True)
    return True


def _explain(command: QueueCommand, alias: str, topic: str) -> None:
    shard = settings.shard_name(alias)
    facts = answering(alias, _facts, alias, topic)
    if facts is None:
        command.note(f"shard {shard!r} does not answer, and all of them have to: it is waited for")
        return
    command.say(f"shard {shard}: {facts}")
    for name in former_subscribers(alias, SAME_SHARDS):
        command.note(f"a consumer of an older version has to end first: {name}")


def _facts(alias: str, topic: str) -> str:
    if not Topic.objects.using(alias).filter(name=topic).exists():
        return "nothing of it has come there yet"
    groups = ConsumerGroup.objects.using(alias).filter(topic=topic).order_by("consumer_group")
    some = Message.objects.using(alias).filter(topic=topic)[:10_001].count()
    scheduled = ScheduledMessage.objects.using(alias).filter(topic=topic)[:10_001].count()
    closed = sum(epoch.end is not None for epoch in epochs(alias, topic))
    text = f"{_about(some)} messages, {_about(scheduled)} scheduled"
    if closed:
        text += f", {closed} former epochs"
    return text + f"; groups: {', '.join(groups.values_list('consumer_group', flat=True)) or 'none'}"


def _about(count: int) -> str:
    return "more than 10,000" if count > 10_000 else str(count)


def _wait_for_former(command: QueueCommand, alias: str) -> None:
    """Wait until no consumer of an older version lives, and the shard answers."""
    told: object = None
    while (former := answering(alias, former_subscribers, alias, SAME_SHARDS)) != []:
        if former != told or told is None:
            shard = settings.shard_name(alias)
            what = "to answer" if former is None else f"'s consumers of an older version to end: {', '.join(former)}"
            command.say(f"Waits for shard {shard!r} {what}")
            told = former if former is not None else ()
        command.pause(SELDOM)


def _carry_on(command: QueueCommand, topic: str) -> None:
    told: dict[str, str] = {}
    began = time.monotonic()
    change = Reshard(topic)
    while found := change.step():
        again = time.monotonic() > began + TOLD_AGAIN
        if again:
            began = time.monotonic()
        for one in found:
            text = _told(one)
            if text and (told.get(one.shard) != text or again):
                command.say(f"shard {one.shard}: {waiting(one.progress) if again and one.progress else text}")
            told[one.shard] = text
        command.pause(OFTEN if all(one.done or one.progress is None or one.progress.left for one in found) else 0)


def _told(one: ShardProgress) -> str:
    if one.done:
        return "All its keys have gone over."
    if one.progress is None:
        return "It waits for this shard to answer." if not one.answers else ""
    return f"{TOLD[one.progress.stage]}."
