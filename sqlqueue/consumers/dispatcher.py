"""The dispatcher: hands out what the streams choose, and settles what becomes of it.

The control thread calls it and alone touches streams; handlers' threads only report. What is claimed is written before
it starts; outcomes and the next claims are written together, for all streams in one transaction.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.event_loop import Blame
from sqlqueue.consumers.ownership import Ownership
from sqlqueue.consumers.pool import Pool
from sqlqueue.consumers.reader import Reader
from sqlqueue.consumers.subscription import Subscription
from sqlqueue.consumers.suspects import SuspectTurns
from sqlqueue.consumers.tally import Tally
from sqlqueue.consumers.throttle import Throttle
from sqlqueue.core import outcomes
from sqlqueue.core.outcomes import SUPERSEDED, UNSTARTED, Outcome, VisibilityTimeout
from sqlqueue.core.plan import Hand, Plan, Run
from sqlqueue.core.stream import Stream
from sqlqueue.database import faults
from sqlqueue.database.incarnation import Incarnation
from sqlqueue.log.settle import settle
from sqlqueue.signals import (
    announce,
    dead_lettered,
    delivery_failed,
    delivery_settled,
    handed_out,
    settled_together,
)

logger = logging.getLogger("sqlqueue")

HELD_UP = Outcome(
    outcomes.POSTPONED, error="another handler has blocked the event loop, or its database calls, for too long"
)
OVERRUN_CHECK = 0.1  # seconds between two looks at the running handlers' deadlines


class Dispatcher:
    """What is in hand in one process. `awake` is called when the control thread should come; `give_up` tells it to stop
    insisting on a database that is away."""

    def __init__(
        self,
        ownership: Ownership,
        reader: Reader,
        threads: int,
        make_pool: Callable[[Callable[[Hand, Outcome], None], Callable[[Run], None]], Pool],
        awake: Callable[[], None],
        give_up: Callable[[], bool],
    ):
        self.alias, self.name = ownership.alias, ownership.subscriber
        self.ownership, self.reader = ownership, reader
        self.throttle = Throttle(threads)
        self.outstanding = 0
        self.settled = 0  # deliveries settled so far
        self.tally = Tally()
        self.server = Incarnation(ownership.alias)
        self.pool = make_pool(self._report, self._run_ended)
        self._awake, self._give_up = awake, give_up
        self._reports: deque[tuple[Hand, Outcome]] = deque()
        self._ended: deque[Run] = deque()
        self._runs: dict[Run, Subscription] = {}
        self._in_company = 0  # how many of them stand in a batch behind its first: a batch is one piece of work
        self._alone = False
        self._turns = SuspectTurns()
        self._overruns_at = 0.0

    # -- reports, from the handlers' threads --------------------------------------------------------------------------

    def _report(self, hand: Hand, outcome: Outcome) -> None:
        self._reports.append((hand, outcome))
        if self.throttle.low(len(self._reports)) or outcome.kind != outcomes.ACKED:
            self._awake()

    def _run_ended(self, run: Run) -> None:
        self._ended.append(run)

    @property
    def reported(self) -> bool:
        """Outcomes wait to be taken in."""
        return bool(self._reports)

    def take_reports(self, now: float) -> bool:
        """Take in the handlers' outcomes; return whether there were any. Atomic ones may have moved a position
        themselves."""
        count = 0
        while self._reports:
            hand, outcome = self._reports.popleft()
            stream = hand.stream
            if stream.lost:
                if hand.outcome is None:
                    hand.outcome = outcome
                    self._out_of_hand(hand)
                continue
            if outcome.moved_to is not None:
                stream.committed_to(outcome.moved_to)
            if stream.finish(hand, outcome, now):
                self._out_of_hand(hand)
                count += 1
        while self._ended:
            self._over(self._ended.popleft())
        self.throttle.finished(count, now)
        self.throttle.handed(self.outstanding)
        return count > 0

    def _over(self, run: Run) -> None:
        """A run has ended, or nothing is expected of it any more: the thread of one that hangs has been replaced."""
        if self._runs.pop(run, None) is not None:
            self._in_company -= _company(run)

    def _out_of_hand(self, hand: Hand) -> None:
        self.outstanding = max(0, self.outstanding - 1)
        if hand.alone:
            self._alone = False

    # -- settling and handing out -------------------------------------------------------------------------------------

    def advance(self, streams: Sequence[Stream], now: float, hand_out: bool) -> bool:
        """Write the outcomes of all streams, and, with `hand_out`, their next claims; start what was claimed.

        Returns whether anything was written.
        """
        chosen = self._choose(streams, now) if hand_out else {}
        plans: list[Plan] = []
        for stream in streams:
            runs = chosen.get(stream, [])
            if runs or stream.active:
                plan = stream.plan(now, settings.FLUSH_INTERVAL, runs)
                if plan is not None:
                    plans.append(plan)
        lost = self.execute(plans) if plans else None
        if lost is None:
            return False
        for plan in plans:
            if plan not in lost:
                if plan.runs and handed_out.receivers:
                    count = sum(len(run.hands) for run in plan.runs)
                    announce(handed_out, Dispatcher, **_place(plan), count=count)
                for run in plan.runs:
                    subscription = self._runs[run] = self.ownership.of(plan.stream)
                    self._in_company += _company(run)
                    self.pool.submit(subscription.handling, run)
        return True

    def _choose(self, streams: Sequence[Stream], now: float) -> dict[Stream, list[Run]]:
        """Decide whom to hand out. A suspect goes alone: nothing else in hand in the whole process until it is
        settled."""
        if self._alone:
            return {}
        if self._turns.of_others(now):
            others = self._choose_others(streams, now)
            if others or self.outstanding:
                return others
        return self._choose_suspect(streams, now)

    def _choose_suspect(self, streams: Sequence[Stream], now: float) -> dict[Stream, list[Run]]:
        for stream in self._turns.in_turn(streams):
            offset = stream.suspect() if self.ownership.hands_out(stream) else None
            if offset is None:
                continue
            if self.outstanding:
                if self._turns.wait(now, {subscription.place for subscription in self._runs.values()}):
                    return {}
                break
            if not self._turns.go_on(now):
                break
            self.reader.load(stream, [offset], now)
            runs = stream.choose_alone(offset, now)
            if runs:
                self._alone = True
                self._turns.was_handed_out(stream)
                self._in_hand(1)
                return {stream: runs}
        else:
            self._turns.end()
        return self._choose_others(streams, now)

    def _choose_others(self, streams: Sequence[Stream], now: float) -> dict[Stream, list[Run]]:
        order = [s for s in self.throttle.in_turn(streams) if not self._turns.waits_for(self.ownership.of(s).place)]
        looped = {stream: self.ownership.of(stream).consumer.is_async for stream in order}
        on_loop = [run for run, subscription in self._runs.items() if subscription.consumer.is_async]
        pieces = sum(1 if run.batch else sum(hand.outcome is None for hand in run.hands) for run in on_loop)
        in_threads = self.outstanding - self._in_company - pieces, len(self._runs) - len(on_loop)
        return {
            **self._choose_of([stream for stream in order if not looped[stream]], now, *in_threads),
            **self._choose_of([stream for stream in order if looped[stream]], now, pieces, len(on_loop)),
        }

    def _choose_of(
        self, streams: Sequence[Stream], now: float, pieces: int, runs_in_hand: int
    ) -> dict[Stream, list[Run]]:
        """Decide what to hand out to the threads, or to the event loop, of what they have so many pieces in hand: one
        that stands still holds up only its own."""
        chosen: dict[Stream, list[Run]] = {}
        room = self.throttle.room(pieces, runs_in_hand)
        of_a_lane = self.throttle.of_a_lane(room, sum(stream.turns for stream in streams))
        for stream in streams:
            if room <= 0:
                break
            if not stream.has_turns or not self.ownership.hands_out(stream) or now >= stream.deadline:
                continue
            if stream.manners.batch and self.throttle.runs(runs_in_hand) <= 0:
                continue
            runs = stream.choose(min(room, stream.manners.batch_size), of_a_lane)
            if runs:
                chosen[stream] = runs
                handed = sum(len(run.hands) for run in runs)
                room -= len(runs) if stream.manners.batch else handed
                runs_in_hand += len(runs)
                self._in_hand(handed)
        return chosen

    def _in_hand(self, count: int) -> None:
        self.outstanding += count
        self.throttle.handed(self.outstanding)

    def execute(self, plans: list[Plan]) -> list[Plan] | None:
        """Settle, through lost connections too; return the plans whose streams were lost, or None if it was given up.

        What was decided is written, or its stream is dropped: there is no third way, and least of all a release that
        would move the position past what a failed settle was to remember. Raises ServerChanged if the database was
        restarted meanwhile: then all streams are to be dropped.
        """
        histories = {sub.consumer.topic: sub.history for sub in self.ownership.subscriptions}

        def settle_on_the_same_server() -> list[Plan]:
            self.server.make_sure()
            try:
                return settle(self.alias, plans, self.name, histories, time.monotonic())
            except Error as error:
                self.server.doubtful = self.server.doubtful or faults.classify(error) is faults.Fault.GONE
                raise

        try:
            lost = faults.patiently(self.alias, settle_on_the_same_server, give_up=self._give_up)
        except BaseException:
            self._unclaim(plans)
            self.lose([plan.stream for plan in plans])
            raise
        if lost is None:
            self._unclaim(plans)
            for plan in plans:
                plan.stream.lost = True
            return None
        for plan in plans:
            if plan not in lost:
                self.settled += len(plan.settled)
                self.tally.add(plan)
                self._announce(plan)
        if lost:
            self._unclaim(lost)
            self.lose([plan.stream for plan in lost])
        return lost

    def _unclaim(self, plans: Sequence[Plan]) -> None:
        """What these would have handed out is not: their claims were not written."""
        for hand in [hand for plan in plans for run in plan.runs for hand in run.hands]:
            self._out_of_hand(hand)

    def lose(self, streams: list[Stream]) -> None:
        """Drop streams that are somebody else's now; of their runs nothing more starts."""
        self.ownership.lose(streams)
        for run in [run for run in self._runs if run.stream.lost]:
            self.take_back(run)

    def take_back(self, run: Run) -> None:
        """Hand back what of a run has not started."""
        for hand in run.stop():
            self._reports.append((hand, UNSTARTED))

    def take_back_paused(self) -> None:
        """Hand back what has not started of groups that are paused."""
        for run, subscription in list(self._runs.items()):
            if subscription.paused:
                self.take_back(run)

    def take_back_all(self) -> None:
        """Hand back everything that has not started."""
        for run in list(self._runs):
            self.take_back(run)

    # -- what takes too long ------------------------------------------------------------------------------------------

    def end_overruns(self, now: float) -> bool:
        """End the hands whose visibility timeout has passed: their handlers may go on, but their outcomes are void, and
        they count no more as in hand.

        Returns False if so many handlers hang that this process is of no more use.
        """
        if now < self._overruns_at:
            return True
        self._overruns_at = now + OVERRUN_CHECK
        self.pool.look(now)
        for run, subscription in list(self._runs.items()):
            late = [hand for hand in run.hands if _overrun(hand, now)]
            if not late or (blame := self.pool.blame(run, now)) is Blame.OPEN:
                continue
            self.take_back(run)
            consumer = subscription.consumer
            for hand in late:
                error = VisibilityTimeout(f"still running after its visibility timeout, at attempt {hand.attempt}")
                outcome = outcomes.decide(error, hand.attempt, consumer.manners.max_attempts, consumer.backoff)
                if blame is Blame.ANOTHERS:
                    outcome = HELD_UP
                hand.finished = now
                if run.stream.lost:  # only the partition's owner may write the outcome
                    hand.outcome = SUPERSEDED
                    self._out_of_hand(hand)
                elif run.stream.finish(hand, outcome, now):
                    self._out_of_hand(hand)
            self.pool.abandon(run)
            if not any(hand.started and not hand.finished for hand in run.hands):
                self._over(run)
        return not self.pool.exhausted

    # -- telling ------------------------------------------------------------------------------------------------------

    def _announce(self, plan: Plan) -> None:
        place = _place(plan)
        if plan.settled and settled_together.receivers:
            announce(settled_together, Dispatcher, **place, hands=plan.settled)
        for hand in plan.settled:
            outcome = hand.outcome
            failed = outcome is not None and outcome.kind == outcomes.RETRIED
            if outcome is None or not (failed or delivery_settled.receivers):
                continue
            facts = {
                **place,
                "offset": hand.offset,
                "attempt": hand.attempt,
                "outcome": outcome.kind,
                "seconds": hand.finished - hand.started,
                "error": outcome.error,
            }
            announce(delivery_settled, Dispatcher, **facts)
            if failed:
                announce(delivery_failed, Dispatcher, **facts)
        for letter in plan.dead:
            facts = {"offset": letter.message.offset, "attempt": letter.attempts, "error": letter.error}
            announce(dead_lettered, Dispatcher, **place, **facts)


def _place(plan: Plan) -> dict[str, Any]:
    address = plan.stream.address
    return {"group": address.group, "topic": address.topic, "partition": address.partition}


def _company(run: Run) -> int:
    return len(run.hands) - 1 if run.batch else 0


def _overrun(hand: Hand, now: float) -> bool:
    return bool(hand.started and not hand.finished and hand.outcome is None and now >= hand.deadline)
