"""What is claimed ahead: when, how far and for how long; what starts by it, and what becomes of what came too late."""

from __future__ import annotations

import math

import pytest

from sqlqueue.core.filters import Filter
from sqlqueue.core.outcomes import RETRIED, SUCCESS, UNSTARTED, Outcome
from sqlqueue.core.partition import changes, settling
from sqlqueue.core.partition.key_limit import KeyLimit
from sqlqueue.core.partition.writes import AHEAD, FALLS_BACK, REFRAINS
from sqlqueue.core.settle_plan import Execution, SettlePlan
from tests.core.test_assigned_partition import Hosted
from tests.factories import MessageValueFactory

pytestmark = pytest.mark.once

LINGER = 0.05


class Stream(Hosted):
    """A partition whose messages come one by one, and are claimed ten offsets ahead of the log."""

    def come(self, keys: str) -> list[Execution]:
        """Publish a message of each of these keys, and choose."""
        end = len(self.log)
        self.log += [MessageValueFactory(offset=end + number, key=key) for number, key in enumerate(keys, 1)]
        self.horizon = len(self.log)
        self.stream.window.alarm()
        self.read()
        return self.choose()

    def choose(self) -> list[Execution]:
        chosen = self.stream.choose(100)
        self.attempts.update((attempt.offset, attempt) for execution in chosen for attempt in execution.attempts)
        return chosen

    def plan(self, executions: list[Execution] = [], linger: float = LINGER) -> SettlePlan | None:  # noqa: B006
        """Plan, and write."""
        plan = settling.plan(self.stream, self.now, 1.0, executions, linger, len(self.log) + 10)
        if plan is not None:
            settling.was_written(self.stream, plan, self.now)
        return plan

    def take(self, keys: str) -> SettlePlan | None:
        """The same for what comes."""
        return self.plan(self.come(keys))


def steady(**options: object) -> Stream:
    """Return a stream that is claimed up to 12, and of which 1 and 2 have been handled."""
    stream = Stream(**options)
    assert not stream.take("a").ahead  # it could be the only one
    stream.finish(1)
    plan = stream.take("b")
    assert (plan.ahead, plan.claimed) == (True, 12)
    stream.finish(2)
    return stream


def test_what_is_claimed_starts_without_a_write_until_the_claim_is_over() -> None:
    stream = steady()
    executions = stream.come("c")
    assert stream.plan(executions) is None
    assert [attempt.claimed_until for attempt in executions[0].attempts] == [AHEAD]
    stream.finish(3)
    stream.now = AHEAD
    executions = stream.come("d")
    plan = stream.plan(executions)
    assert (plan.position, plan.claimed, plan.executions) == (3, 14, tuple(executions))
    assert executions[0].attempts[0].claimed_until == math.inf


def test_a_position_waits_no_longer_because_claims_need_no_write() -> None:
    stream = steady()
    assert stream.take("c") is None
    stream.now = 1.5 * LINGER
    plan = stream.take("d")
    assert (plan.position, plan.ahead) == (2, True)
    assert stream.stream.claims_ahead.until == 1.5 * LINGER + AHEAD


def test_what_is_beyond_the_claim_is_written() -> None:
    stream = steady()
    assert stream.plan(stream.come("c" * 10 + "d")) is not None


def test_what_waits_for_a_write_of_another_message_is_not_started_without_it() -> None:
    stream = steady()
    assert stream.take("c") is None
    stream.finish(3, Outcome(RETRIED, 10.0, "no"))
    executions = stream.come("d")
    plan = stream.plan(executions)
    assert [row.offset for row in plan.rows] == [3]
    assert plan.executions == tuple(executions)


def test_a_message_that_was_too_late_is_claimed_by_a_write() -> None:
    stream = steady()
    assert stream.take("c") is None
    stream.now = AHEAD
    stream.finish(3, UNSTARTED)
    for later in (0.0, REFRAINS):
        stream.now += later
        executions = stream.choose()
        plan = stream.plan(executions)
        assert plan.executions == tuple(executions)
        assert executions[0].attempts[0].claimed_until == math.inf
        assert not plan.ahead, "handlers are slow"
        stream.finish(3, UNSTARTED)
    # Even while others start without a write.
    assert stream.plan(stream.choose()).ahead
    assert stream.take("d") is None
    stream.finish(3, UNSTARTED)
    assert stream.plan(stream.choose()) is not None


def test_a_claim_falls_back_to_what_was_dispatched() -> None:
    stream = steady()
    assert stream.plan(linger=0.0).position == 2
    assert stream.take("c") is None
    stream.now = FALLS_BACK - 0.01
    assert stream.plan() is None
    assert stream.stream.active
    stream.now = FALLS_BACK
    plan = stream.plan()
    assert (plan.falls_back, plan.claimed) == (True, 3)
    stream.finish(3)
    assert stream.plan(linger=0.0).claimed == 3
    assert not stream.stream.active
    assert stream.take("d").claimed == 4


def test_a_release_releases_what_was_claimed_ahead() -> None:
    plan = settling.release_plan(steady().stream, 0.0)
    assert (plan.release, plan.position, plan.claimed, plan.ahead) == (True, 2, 2, False)


def test_a_backlog_is_not_claimed_ahead() -> None:
    stream = steady()
    stream.now = AHEAD
    executions = stream.come("aaa")
    changes.finish(stream.stream, executions[0].attempts[1], UNSTARTED, 0.0)
    plan = stream.plan(executions)
    assert (plan.ahead, plan.claimed) == (False, 5)


@pytest.mark.parametrize(
    "options",
    [
        {"atomic": True},
        {"where": Filter({"key": {"a", "b", "c"}})},
        {"key_limit": KeyLimit(5), "ordering": "none"},
        {"keep_results": 60.0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_consumers_of_which_a_claim_ahead_would_save_nothing_have_none(options: dict[str, object]) -> None:
    stream = Stream(**options)
    for offset, key in enumerate("abc", 1):
        executions = stream.come(key)
        plan = stream.plan(executions)
        assert plan is not None
        assert plan.executions == tuple(executions)
        stream.finish(offset, SUCCESS)
