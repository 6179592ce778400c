"""Replays: operator requests to deliver dead letters again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from sqlqueue.core.bounds import checked_rate
from sqlqueue.core.outcomes import ACKED, DEAD, message_of
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import ConsumerGroup, Message, Request, dead_letter_topic
from sqlqueue.models.request import DONE, FAILED, NEW, REPLAY, RUNNING, TRIAL, as_note
from sqlqueue.operations.replay import AT_ONCE, DeadLetterSelection, replay_some
from sqlqueue.stats.group_status import EXPIRED, status


def request_replay(
    log: Log,
    topic: str,
    *,
    group: str = "",
    fingerprint: str = "",
    offsets: Iterable[int] | None = None,
    rate: float | None = None,
    trial: bool = False,
    requested_by: str = "",
) -> Request:
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
    total, last = chosen.extent(log)
    if not total:
        raise ConfigurationError(f"topic {topic!r} has no such dead letters: nothing to replay")
    if chosen.deliverable(log).first(log) is None:
        raise ConfigurationError(chosen.undeliverable(log))
    request = Request.objects.using(log.alias).create(
        kind=REPLAY,
        topic=topic,
        consumer_group=group,
        options={"fingerprint": fingerprint, "offsets": wanted, "trial": trial},
        through=last,
        rate=rate,
        total=total,
        ordered_by=requested_by,
    )
    request.refresh_from_db(using=log.alias)  # MySQL does not return what the columns' defaults are
    return request


def fail_trials(log: Log, topic: str, offsets: Collection[int], why: str) -> None:
    """Fail the replays of a topic whose trial is at one of these offsets and was not acked: an operator removes it
    from the log."""
    trials = Request.objects.using(log.alias).filter(topic=topic, state=TRIAL, trial_offset__isnull=False)
    for request in trials:
        if request.trial_offset not in offsets:
            continue
        message = Message.objects.using(log.alias).filter(offset=request.trial_offset).first()
        if message is not None and status(log, message, message.target_group).state != ACKED:
            note = as_note(f"the first one, offset {request.trial_offset}, {why}")
            same = trials.filter(pk=request.pk)
            same.update(state=FAILED, note=note, updated_at=DatabaseNow())


def step(log: Log, request: Request, most: int) -> None:
    """Deliver the next dead letters of a replay again, at most so many. While its trial runs, this looks how that has
    ended."""
    if request.state == TRIAL:
        failure = _failure_of_trial(log, request)
        if failure is None:
            return
        request.state, request.note = (FAILED, as_note(failure)) if failure else (RUNNING, request.note)
        if failure:
            return
    is_first = bool(request.options.get("trial")) and request.state == NEW
    moved = replay_some(log, _left(request), 1 if is_first else min(most, AT_ONCE))
    left = _left(request).deliverable(log).first(log)  # what another transaction has locked is left, too
    if not moved and left is not None:
        return
    if moved:
        request.done += len(moved)
        request.at_offset = moved[-1].offset if left is None else left - 1
        if is_first:
            first = moved[0]
            copy = Message.objects.using(log.alias).of_id(request.topic, first.id, first.key).get()
            request.state, request.trial_offset = TRIAL, copy.offset
            return
    request.state = RUNNING
    if left is None:
        gone = replace(_left(request), after=0).undeliverable(log)
        request.state = DONE if request.done or not gone else FAILED
        request.note = as_note("; ".join(filter(None, [gone, request.note])))


def skip(log: Log, request: Request, reason: Exception) -> bool:
    """Pass by the dead letter that cannot be delivered again; return whether there is one."""
    next_one = _left(request).deliverable(log).first(log)
    if next_one is not None:
        request.at_offset = next_one
        request.note = as_note(f"dead letter {next_one} was skipped: {message_of(reason) or type(reason).__name__}")
    return next_one is not None


def _left(request: Request) -> DeadLetterSelection:
    """Return which dead letters a replay has yet to deliver; raise ConfigurationError if its offsets are invalid."""
    fingerprint, offsets = request.options.get("fingerprint", ""), request.options.get("offsets")
    if offsets is not None and not (isinstance(offsets, list) and all(isinstance(one, int) for one in offsets)):
        raise ConfigurationError("its offsets are not a list of integers")
    chosen = (request.topic, request.consumer_group, fingerprint, offsets)
    return DeadLetterSelection(*chosen, request.through, request.at_offset)


def _failure_of_trial(log: Log, request: Request) -> str | None:
    """Return why the trial of a replay, its first message, has failed; "" if it was acked, None while it is tried."""
    died = f"the first one, offset {request.trial_offset}, died again"
    message = Message.objects.using(log.alias).filter(offset=request.trial_offset).first()
    if message is None:  # collected: it was acked, or is a dead letter again
        dead_letters = Message.objects.using(log.alias).filter(topic=dead_letter_topic(request.topic))
        return died if dead_letters.filter(original_offset=request.trial_offset).exists() else ""
    group = message.target_group
    state = status(log, message, group).state
    if state in (ACKED, DEAD, EXPIRED):
        return "" if state == ACKED else died
    if ConsumerGroup.objects.using(log.alias).filter(topic=message.topic, consumer_group=group).exists():
        return None
    return f"group {group} is not registered any more: no process tries the first one, offset {message.offset}"
