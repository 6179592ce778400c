"""Replays: orders to deliver dead letters again, carried out by the consumer processes, one of them at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from django.db import Error

from sqlqueue.core.lines import line
from sqlqueue.core.outcomes import said_by, storable
from sqlqueue.database import faults
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.gate import REPLAYER, take_duty
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.fates import ACKED, DEAD, fate
from sqlqueue.log.redrive import Choice, redrive_some
from sqlqueue.models import ConsumerGroup, Message, Replay, dead_letter_topic
from sqlqueue.models.replay import ACTIVE, CANCELLED, DONE, FAILED, NEW, RUNNING, TRIAL

logger = logging.getLogger("sqlqueue")

AT_ONCE = 100
LEAST_RATE, MOST_RATE = 0.01, 1_000_000  # messages a second
NOTE_LENGTH = 300  # characters; the column's
PROGRESS = ("state", "done", "reached", "trial_offset", "note", "updated_at")  # of an order; the rest stays as it is
INTERVAL = 1.0  # seconds between two steps of an order that has a rate, or waits for its trial


def checked_rate(rate: float | None) -> float | None:
    """Return how many a second; refuse what no order could keep."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not LEAST_RATE <= rate <= MOST_RATE:
        raise ConfigurationError(
            f"the rate must be messages a second, from {LEAST_RATE:g} to {MOST_RATE:,}, not {rate!r};"
            " without one they go as fast as they can"
        )
    return float(rate)


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

    Raises ConfigurationError if there is no such dead letter, if all are of groups that are not registered any more,
    and if the rate is none.
    """
    rate = checked_rate(rate)
    wanted = None if offsets is None else sorted(set(offsets))
    chosen = Choice(topic, group, fingerprint, wanted)
    total, last = chosen.extent(alias)
    if not total:
        raise ConfigurationError(f"topic {topic!r} has no such dead letters: nothing to replay")
    if chosen.deliverable(alias).first(alias) is None:
        raise ConfigurationError(chosen.undeliverable(alias))
    replay = Replay.objects.using(alias).create(
        topic=topic,
        consumer_group=group,
        fingerprint=fingerprint,
        offsets=wanted,
        through=last,
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
    orders = Replay.objects.using(alias).filter(state__in=ACTIVE).order_by("id").values_list("pk", flat=True)
    more, last = False, 0
    while some := list(orders.filter(pk__gt=last)[:AT_ONCE]):
        for number in some:
            more = _next(alias, number) or more
        last = some[-1]
    return more


def _next(alias: str, number: int) -> bool:
    """Do the next step of one order. What fails in it is that order's: no other waits for it, and it goes on itself
    with the next dead letter."""
    reason: Exception | None = None
    for most in (AT_ONCE, 1):  # all at once, or whichever it is that fails
        try:
            return faults.run(alias, _step, alias, number, most)
        except Error as error:
            fault = faults.classify(error)
            if fault is faults.Fault.GONE:
                raise
            if fault is faults.Fault.CONTENTION:
                return False  # told by who ran it; the next turn comes
            reason = error
        except Exception as error:
            reason = error
    logger.warning(line("replay_refused", order=number, error=reason))
    return faults.run(alias, _pass_by, alias, number, reason)


def _locked(alias: str, number: int) -> Replay | None:
    """Lock an order that is not done, with `now`; None if another process has the duty, or it is done."""
    if not take_duty(alias, REPLAYER):
        return None
    orders = Replay.objects.using(alias).filter(pk=number, state__in=ACTIVE).annotate(now=DatabaseNow())
    return orders.select_for_update().first()


def _step(alias: str, number: int, most: int) -> bool:
    """One step of one order, and its row, in one transaction: no dead letter is counted twice."""
    replay = _locked(alias, number)
    if replay is None:
        return False
    rate = checked_rate(replay.rate)
    since = (replay.now - replay.updated_at).total_seconds()  # type: ignore[attr-defined]
    if rate is not None and replay.done and since < max(INTERVAL, 1 / rate):
        return False  # another process has just done a step, or it is a slow one
    if replay.state == TRIAL:
        _look_at_the_trial(alias, replay)
        if replay.state == TRIAL:
            return False
    moved = replay.state != FAILED and _move(alias, replay, min(most, _due(replay)))
    _save(alias, replay)
    return moved and replay.state == RUNNING and replay.rate is None


def _move(alias: str, replay: Replay, most: int) -> bool:
    """Deliver at most so many again; return whether any were."""
    moved = redrive_some(alias, _left(replay), most)
    left = _left(replay).deliverable(alias).first(alias)  # what another transaction has locked is left, too
    if moved:
        replay.done += len(moved)
        replay.reached = moved[-1].offset if left is None else left - 1
    elif left is not None and replay.state == NEW:
        return False
    if moved and replay.trial and replay.state == NEW:
        replay.state = TRIAL
        first = moved[0]
        copies = Message.objects.using(alias).filter(topic=replay.topic, partition=first.partition)
        replay.trial_offset = copies.get(message_id=first.id).offset
        return True
    replay.state = RUNNING
    if left is None:
        gone = replace(_left(replay), after=0).undeliverable(alias)
        replay.state = DONE if replay.done or not gone else FAILED
        replay.note = _note("; ".join(filter(None, [gone, replay.note])))
    return bool(moved)


def _pass_by(alias: str, number: int, reason: Exception) -> bool:
    """Go on behind the dead letter that cannot be delivered again; end the order if it is the order that is wrong."""
    replay = _locked(alias, number)
    if replay is None:
        return False
    next_one = None
    if not isinstance(reason, ConfigurationError):
        next_one = _left(replay).deliverable(alias).first(alias)
    if next_one is None:
        replay.state, replay.note = FAILED, _note(str(reason))
    else:
        replay.reached = next_one
        replay.note = _note(f"dead letter {next_one} was passed by: {said_by(reason) or type(reason).__name__}")
    _save(alias, replay)
    return replay.state != FAILED and replay.rate is None


def _left(replay: Replay) -> Choice:
    """Return which dead letters an order has yet to deliver again; raise ConfigurationError if it does not say."""
    if replay.offsets is not None and not _are_offsets(replay.offsets):
        raise ConfigurationError("what it names is no list of offsets")
    chosen = (replay.topic, replay.consumer_group, replay.fingerprint, replay.offsets)
    return Choice(*chosen, replay.through, replay.reached)


def _are_offsets(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(one, int) for one in given)


def _save(alias: str, replay: Replay) -> None:
    replay.updated_at = DatabaseNow()
    replay.save(using=alias, update_fields=PROGRESS)


def _note(text: str) -> str:
    return storable(text)[:NOTE_LENGTH]


def _due(replay: Replay) -> int:
    """How many may go with this step."""
    if replay.trial and replay.state != RUNNING:
        return 1
    return AT_ONCE if replay.rate is None else max(1, min(AT_ONCE, int(replay.rate * INTERVAL)))


def _look_at_the_trial(alias: str, replay: Replay) -> None:
    """Look what became of the first one; note the result in the order."""
    message = Message.objects.using(alias).filter(offset=replay.trial_offset).first()
    if message is None:  # collected: it was acked, or died again and left a letter
        replay.state = RUNNING
        letters = Message.objects.using(alias).filter(topic=dead_letter_topic(replay.topic))
        if letters.filter(original_offset=replay.trial_offset).exists():
            replay.state, replay.note = FAILED, f"the first one, offset {replay.trial_offset}, died again"
        return
    group = message.target_group
    outcome = fate(alias, message, group)
    if outcome.state == ACKED:
        replay.state = RUNNING
    elif outcome.state == DEAD:
        replay.state, replay.note = FAILED, f"the first one, offset {message.offset}, died again"
    elif not ConsumerGroup.objects.using(alias).filter(topic=message.topic, consumer_group=group).exists():
        text = f"group {group} is not registered any more: nobody tries the first one, offset {message.offset}"
        replay.state, replay.note = FAILED, _note(text)
