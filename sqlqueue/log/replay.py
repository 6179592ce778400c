"""Replays: orders to deliver dead letters again, carried out by the consumer processes, one of them at a time."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Max

from sqlqueue.database import faults
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.gate import REPLAYER, take_duty
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.fates import ACKED, DEAD, fate
from sqlqueue.log.redrive import Choice, redrive_some
from sqlqueue.models import Message, Replay
from sqlqueue.models.replay import ACTIVE, CANCELLED, DONE, FAILED, RUNNING, TRIAL

AT_ONCE = 100
INTERVAL = 1.0  # seconds between two steps of an order that has a rate, or waits for its trial


def order(
    alias: str,
    topic: str,
    *,
    group: str = "",
    fingerprint: str = "",
    offsets: Iterable[int] | None = None,
    rate: float | None = None,
    trial: bool = False,
    ordered_by: str = "",
) -> Replay:
    """Order dead letters of a topic to be delivered again, oldest first; return the order, whose row tells how it goes.

    group, fingerprint, offsets: which of them, as in redrive; rate: at most so many a second; trial: the oldest one
    first, the others once it has been acked, none if it dies again. What dies from now on is not part of it.

    Raises ConfigurationError if there is no such dead letter, or the rate is not above 0.
    """
    if rate is not None and not rate > 0:
        raise ConfigurationError(f"the rate must be messages a second, more than 0, not {rate!r}")
    wanted = None if offsets is None else sorted(set(offsets))
    letters = Choice(topic, group, fingerprint, wanted).letters(alias)
    total = letters.count()
    if not total:
        raise ConfigurationError(f"topic {topic!r} has no such dead letters: nothing to replay")
    replay = Replay.objects.using(alias).create(
        topic=topic,
        consumer_group=group,
        fingerprint=fingerprint,
        offsets=wanted,
        through=letters.aggregate(last=Max("offset"))["last"],
        rate=rate,
        trial=trial,
        total=total,
        ordered_by=ordered_by,
    )
    replay.refresh_from_db(using=alias)  # MySQL does not return what the columns' defaults are
    return replay


def cancel(alias: str, replay: int) -> bool:
    """Stop an order that is not done; return whether it was not. What it has delivered stays delivered."""
    orders = Replay.objects.using(alias).filter(pk=replay, state__in=ACTIVE)
    return bool(orders.update(state=CANCELLED, updated_at=DatabaseNow()))


def carry_out(alias: str) -> bool:
    """Do the next step of every order; return whether there is more to do at once."""
    orders = Replay.objects.using(alias).filter(state__in=ACTIVE).order_by("id")
    steps = [faults.run(alias, _step, alias, number) for number in orders.values_list("pk", flat=True)[:AT_ONCE]]
    return any(steps)


def _step(alias: str, number: int) -> bool:
    """One step of one order, and its row, in one transaction: no dead letter is counted twice."""
    if not take_duty(alias, REPLAYER):
        return False
    orders = Replay.objects.using(alias).filter(pk=number, state__in=ACTIVE).annotate(now=DatabaseNow())
    replay = orders.select_for_update().first()
    if replay is None:
        return False
    since = (replay.now - replay.updated_at).total_seconds()
    if replay.rate is not None and replay.done and since < max(INTERVAL, 1 / replay.rate):
        return False  # another process has just done a step, or it is a slow one
    if replay.state == TRIAL and not _trial_is_over(alias, replay):
        return False
    wanted = _due(replay)
    choice = Choice(
        replay.topic,
        replay.consumer_group,
        replay.fingerprint,
        replay.offsets,
        replay.through,
        replay.reached,
    )
    moved = redrive_some(alias, choice, wanted) if wanted and replay.state != FAILED else []
    if moved:
        replay.done += len(moved)
        replay.reached = moved[-1].offset
    if replay.state not in (FAILED, RUNNING):
        replay.state = RUNNING
        if replay.trial and moved:
            replay.state = TRIAL
            first = moved[0]
            replay.trial_offset = (
                Message.objects.using(alias)
                .get(topic=replay.topic, partition=first.partition, message_id=first.id)
                .offset
            )
    if replay.state == RUNNING and wanted and len(moved) < wanted:
        replay.state = DONE
    replay.updated_at = DatabaseNow()
    replay.save(using=alias)
    return replay.state == RUNNING and replay.rate is None


def _due(replay: Replay) -> int:
    """How many may go with this step."""
    if replay.trial and replay.state != RUNNING:
        return 1
    return AT_ONCE if replay.rate is None else max(1, min(AT_ONCE, int(replay.rate * INTERVAL)))


def _trial_is_over(alias: str, replay: Replay) -> bool:
    """Look what became of the first one; note the result in the order."""
    message = Message.objects.using(alias).filter(offset=replay.trial_offset).first()
    if message is None:  # collected: only what was acked is
        replay.state = RUNNING
        return True
    outcome = fate(alias, message, message.target_group)
    if outcome.state == ACKED:
        replay.state = RUNNING
    elif outcome.state == DEAD:
        replay.state, replay.note = FAILED, f"the first one, offset {message.offset}, died again"
    return outcome.state in (ACKED, DEAD)
