"""The shares that a process takes in the limits of its groups: tokens of the rate, and slots to run handlers in.

Each take is one short transaction under the lock of the group's row, so what the living processes hold together never
exceeds a limit. What a process held that has died is missing until its share expires.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlqueue.core.fair_shares import Breaker, Sharer, bucket, draw, slots, wait
from sqlqueue.core.flow import Flow, in_effect
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.database.retries import in_transaction
from sqlqueue.models import ConsumerGroup, LimitShare
from sqlqueue.models.subscriber import AHEAD


@dataclass(frozen=True, slots=True)
class Need:
    """What a process could do. demand: messages a second; unused: tokens that it gives back; running: handlers at work;
    wanted: slots that it could use; held_back: something waits for a token or a slot; failed: attempts that have failed
    since the last take; trial: its message is being tried, or was; succeeded: and that has succeeded; unused_trial:
    what it was given, and has tried no message for."""

    demand: float
    unused: int
    running: int
    wanted: int
    held_back: bool
    failed: int = 0
    trial: bool = False
    succeeded: bool = False
    unused_trial: datetime | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What a process has got. next_token: in how many seconds the bucket holds a whole token, 0.0 if it does; open: the
    retry budget is spent; turned: this take has found that out, or that the group works again; trial: one message may
    be tried, and no other one before that time; None: none may."""

    flow: Flow
    tokens: int
    slots: int
    next_token: float
    open: bool = False
    turned: bool = False
    trial: datetime | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. ahead: for how long tokens are drawn, and the bucket fills; yield_after: a process that has had slots
    yields to one that has waited so long for its first; lasts: the lease of a share."""

    ahead: float
    yield_after: float
    lasts: float


@in_transaction
def take(log: Log, subscriber: str, group: str, topic: str, need: Need, times: Times) -> Share | None:
    """Give back what a process has not used, and take what it needs now, as far as the limits and the other processes
    leave it. None: the group is not registered any more. Five statements."""
    of_group = {"topic": topic, "consumer_group": group}
    groups = ConsumerGroup.objects.using(log.alias).filter(**of_group)
    row = groups.select_for_update().annotate(now=DatabaseNow()).first()
    if row is None:
        return None
    rows = {one.subscriber: one for one in LimitShare.objects.using(log.alias).filter(**of_group)}
    now, flow = row.now, in_effect(row.flow, row.flow_overrides)
    others = [_sharer(one, now) for one in rows.values() if one.subscriber != subscriber and _alive(one, now)]
    mine = rows.get(subscriber)
    waits_since = _waits_since(mine, need, now)
    me = Sharer(
        subscriber,
        need.demand,
        _since(mine.drew_at, now) if mine else 0.0,
        mine.slots if mine else 0,
        need.wanted,
        _since(waits_since, now) if waits_since else 0.0,
    )
    tokens, next_token = 0, 0.0
    before = Breaker(row.failures or 0, row.failures_since, row.opened_at, row.trial_at)
    breaker = _judged(before, flow, need, times, now)
    rests = _rests(breaker, flow, need, times, now)
    if flow.rate is not None:
        rate = flow.rate.per_second
        at = row.tokens_at
        held = bucket(row.tokens + need.unused, _since(at, now), rate, times.ahead) if at and at < now + AHEAD else 1.0
        tokens = 0 if rests else draw(me, others, held, rate, times.ahead)
        left = held - tokens
        next_token = max(0.0, (1.0 - left) / rate)
        groups.update(tokens=left, tokens_at=max(at, now) if at and at < now + AHEAD else now)
    given = slots(me, others, flow.concurrency, need.running, times.yield_after) if flow.concurrency is not None else 0
    trial = breaker.opened_at is not None and not rests
    trial = trial and (flow.rate is None or tokens > 0) and (flow.concurrency is None or given > 0)
    if trial and flow.budget is not None:
        breaker = breaker.tried(False, flow.budget.seconds, times.yield_after, now)  # no other one beside it
    if breaker != before:
        groups.update(
            failures=breaker.failures,
            failures_since=breaker.since,
            opened_at=breaker.opened_at,
            trial_at=breaker.trial_at,
        )
    values = {
        "demand": need.demand,
        "drew_at": now if tokens or mine is None or not need.demand else min(mine.drew_at, now),
        "slots": given,
        "wanted": need.wanted,
        "waits_since": waits_since if not given else None,
        "held_back": need.held_back,
        "taken_at": now,
        "expires_at": now + timedelta(seconds=times.lasts),
    }
    shares = LimitShare.objects.using(log.alias).filter(**of_group)
    if subscriber in rows:
        shares.filter(subscriber=subscriber).update(**values)
    else:
        LimitShare.objects.using(log.alias).create(**of_group, subscriber=subscriber, **values)
    if dead := [one.pk for one in rows.values() if one.subscriber != subscriber and not _alive(one, now)]:
        shares.filter(pk__in=dead).delete()
    opened = breaker.opened_at is not None
    turned = opened != (before.opened_at is not None)
    return Share(flow, tokens, given, next_token, opened, turned, breaker.trial_at if trial else None)


def _judged(breaker: Breaker, flow: Flow, need: Need, times: Times, now: datetime) -> Breaker:
    """Return the group's breaker after what a process has to tell."""
    if flow.budget is None:
        return Breaker()
    seconds, least = flow.budget.seconds, times.yield_after
    if need.trial:
        return breaker.tried(need.succeeded, seconds, least, now)
    if need.unused_trial is not None and need.unused_trial == breaker.trial_at:
        return replace(breaker, trial_at=now)
    return breaker.counted(need.failed, flow.budget.count, seconds, least, now)


def _rests(breaker: Breaker, flow: Flow, need: Need, times: Times, now: datetime) -> bool:
    """Tell whether a process is to start nothing, because the retry budget is spent. What runs was started before; it
    is waited for, but for no longer than a trial takes to come again, since a handler may hang."""
    if breaker.opened_at is None or flow.budget is None:
        return False
    due = breaker.admits(flow.budget.seconds, times.yield_after, now)
    awaited = need.running > 0 and now < breaker.opened_at + 2 * wait(flow.budget.seconds, times.yield_after)
    return awaited or not need.held_back or not due


def leave(log: Log, subscriber: str) -> None:
    """Give up every share of a process that ends."""
    retries.run(log, LimitShare.objects.using(log.alias).filter(subscriber=subscriber).delete)


def _alive(row: LimitShare, now: datetime) -> bool:
    return row.expires_at > now and row.taken_at < now + AHEAD


def _sharer(row: LimitShare, now: datetime) -> Sharer:
    waits = _since(row.waits_since, now) if row.waits_since else 0.0
    return Sharer(row.subscriber, row.demand, _since(row.drew_at, now), row.slots, row.wanted, waits)


def _since(at: datetime, now: datetime) -> float:
    return max(0.0, (now - at).total_seconds())


def _waits_since(mine: LimitShare | None, need: Need, now: datetime) -> datetime | None:
    if need.running or not need.wanted or (mine is not None and mine.slots):
        return None
    return min(mine.waits_since, now) if mine is not None and mine.waits_since else now  # the clock may be set back
