"""Replays: operator requests to deliver dead letters again. Consumer processes carry them out, one process at a
time."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import ACKED, DEAD, message_of
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import ConsumerGroup, Message, Replay, dead_letter_topic
from sqlqueue.models.replay import DONE, FAILED, NEW, RUNNING, TRIAL
from sqlqueue.operations import requests
from sqlqueue.operations.replay import DeadLetterSelection, replay_some
from sqlqueue.operations.requests import AT_ONCE, checked_rate
from sqlqueue.stats.group_status import EXPIRED, status

logger = logging.getLogger("sqlqueue")

PROGRESS = ("state", "done", "reached", "trial_offset", "note")  # of a request; its other columns do not change


def request_replay(
    alias: str,
    topic: str,
    *,
    group: str = "",
    fingerprint: str = "",
    offsets: Iterable[int] | None = None,
    rate: float | None = None,
    trial: bool = False,
    requested_by: str = "",
) -> Replay:
    """Request that dead letters of a topic are delivered again, oldest first; return the request, whose row shows its
    progress.

    group, fingerprint, offsets: which of them, as in replay; rate: at most so many a second; trial: the oldest one
    first, the others once it has been acked, none if it becomes a dead letter again. Later dead letters are not part of
    it.

    Raises ConfigurationError if there is no such dead letter, if all are of groups that are no longer registered, and
    for an invalid rate.
    """
    rate = checked_rate(rate)
    wanted = None if offsets is None else sorted(set(offsets))
    chosen = DeadLetterSelection(topic, group, fingerprint, wanted)
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
        ordered_by=requested_by,
    )
    replay.refresh_from_db(using=alias)  # MySQL does not return what the columns' defaults are
    return replay


def cancel(alias: str, replay: int) -> bool:
    """Cancel a replay that is not done; return whether it was not. What it has delivered stays delivered."""
    return requests.cancel(alias, Replay, replay)


def fail_trials(alias: str, topic: str, offsets: Collection[int], why: str) -> None:
    """Fail the replays of a topic whose trial is at one of these offsets and was not acked: an operator removes it
    from the log."""
    trials = Replay.objects.using(alias).filter(topic=topic, state=TRIAL, trial_offset__isnull=False)
    for replay in trials:
        if replay.trial_offset not in offsets:
            continue
        message = Message.objects.using(alias).filter(offset=replay.trial_offset).first()
        if message is not None and status(alias, message, message.target_group).state != ACKED:
            note = _note(f"the first one, offset {replay.trial_offset}, {why}")
            same = trials.filter(pk=replay.pk)
            same.update(state=FAILED, note=note, updated_at=DatabaseNow())


def carry_out(alias: str) -> bool:
    """Do the next step of every replay; return whether there is more to do at once."""
    return requests.of_each(alias, Replay, _next)


def _next(alias: str, number: int) -> bool:
    """Do the next step of one replay. A failure affects only this replay, which goes on with the next dead letter."""
    for most in (AT_ONCE, 1):  # all at once; if that fails, one by one to find the one that fails
        reason = requests.try_step(alias, _step, number, most)
        if isinstance(reason, bool):
            return reason
    logger.warning(logfmt("replay_refused", request=number, error=reason))
    return retries.run(alias, _skip_next, alias, number, reason)


def _step(alias: str, number: int, most: int) -> bool:
    """Do one step of a replay and update its row, in one transaction: no dead letter is counted twice."""
    replay = requests.locked(alias, Replay, number)
    if replay is None:
        return False
    if requests.too_early(replay, checked_rate(replay.rate)):
        return False
    if replay.state == TRIAL:
        _check_trial(alias, replay)
        if replay.state == TRIAL:
            return False
    moved = replay.state != FAILED and _move(alias, replay, min(most, _step_size(replay)))
    _save(alias, replay)
    return moved and replay.state == RUNNING and replay.rate is None


def _move(alias: str, replay: Replay, most: int) -> bool:
    """Deliver at most so many again; return whether any were."""
    moved = replay_some(alias, _left(replay), most)
    left = _left(replay).deliverable(alias).first(alias)  # what another transaction has locked is left, too
    if moved:
        replay.done += len(moved)
        replay.reached = moved[-1].offset if left is None else left - 1
    elif left is not None and replay.state == NEW:
        return False
    if moved and replay.trial and replay.state == NEW:
        replay.state = TRIAL
        first = moved[0]
        replay.trial_offset = Message.objects.using(alias).of_id(replay.topic, first.id, first.key).get().offset
        return True
    replay.state = RUNNING
    if left is None:
        gone = replace(_left(replay), after=0).undeliverable(alias)
        replay.state = DONE if replay.done or not gone else FAILED
        replay.note = _note("; ".join(filter(None, [gone, replay.note])))
    return bool(moved)


def _skip_next(alias: str, number: int, reason: Exception) -> bool:
    """Skip the dead letter that cannot be delivered again; fail the replay if the replay itself is invalid."""
    replay = requests.locked(alias, Replay, number)
    if replay is None:
        return False
    next_one = None
    if not isinstance(reason, ConfigurationError):
        next_one = _left(replay).deliverable(alias).first(alias)
    if next_one is None:
        replay.state, replay.note = FAILED, _note(str(reason))
    else:
        replay.reached = next_one
        replay.note = _note(f"dead letter {next_one} was skipped: {message_of(reason) or type(reason).__name__}")
    _save(alias, replay)
    return replay.state != FAILED and replay.rate is None


def _left(replay: Replay) -> DeadLetterSelection:
    """Return which dead letters a replay has yet to deliver; raise ConfigurationError if its offsets are invalid."""
    if replay.offsets is not None and not _are_offsets(replay.offsets):
        raise ConfigurationError("its offsets are not a list of integers")
    chosen = (replay.topic, replay.consumer_group, replay.fingerprint, replay.offsets)
    return DeadLetterSelection(*chosen, replay.through, replay.reached)


def _are_offsets(given: object) -> bool:
    return isinstance(given, list) and all(isinstance(one, int) for one in given)


def _save(alias: str, replay: Replay) -> None:
    requests.save(alias, replay, PROGRESS)


def _note(text: str) -> str:
    return requests.as_note(text)


def _step_size(replay: Replay) -> int:
    """Return how many dead letters this step may deliver."""
    return 1 if replay.trial and replay.state != RUNNING else requests.step_size(replay.rate)


def _check_trial(alias: str, replay: Replay) -> None:
    """Note in the replay how its trial, the first message, has ended."""
    message = Message.objects.using(alias).filter(offset=replay.trial_offset).first()
    if message is None:  # collected: it was acked, or is a dead letter again
        replay.state = RUNNING
        dead_letters = Message.objects.using(alias).filter(topic=dead_letter_topic(replay.topic))
        if dead_letters.filter(original_offset=replay.trial_offset).exists():
            replay.state, replay.note = FAILED, f"the first one, offset {replay.trial_offset}, died again"
        return
    group = message.target_group
    outcome = status(alias, message, group)
    if outcome.state == ACKED:
        replay.state = RUNNING
    elif outcome.state in (DEAD, EXPIRED):
        replay.state, replay.note = FAILED, f"the first one, offset {message.offset}, died again"
    elif not ConsumerGroup.objects.using(alias).filter(topic=message.topic, consumer_group=group).exists():
        text = f"group {group} is not registered any more: no process tries the first one, offset {message.offset}"
        replay.state, replay.note = FAILED, _note(text)
