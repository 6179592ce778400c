"""Decisions about a partition: the RFC's examples, ordering queues, attempts, and what keeps it from standing still."""

import json

import pytest

from sqlqueue.core.filters import Filter
from sqlqueue.core.new_message import REPLY
from sqlqueue.core.outcomes import ACKED, COMMITTED, DEAD, POSTPONED, RETRIED, SUCCESS, UNSTARTED, Outcome
from sqlqueue.core.partition import arrivals, changes, settling, window
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.blocked import StoredRange
from sqlqueue.core.partition.key_limit import KeyLimit
from sqlqueue.core.partition.ref import ConsumerOptions, PartitionRef
from sqlqueue.core.partition.waiting import MOST_DEATHS
from sqlqueue.core.partition.window import Found, Read
from sqlqueue.core.settle_plan import ALONE, HEAVY, NOT_IN_FLIGHT, TOGETHER, RowWrite, SettlePlan, StoredRow
from tests.core.test_log_model import check_bounds
from tests.core.weighing import fitting
from tests.factories import MessageValueFactory

pytestmark = pytest.mark.once

RETRY = Outcome(RETRIED, 10.0, "no")


class Hosted:
    """An assigned partition whose log is given, and whose plans all succeed."""

    def __init__(
        self,
        keys: str | list[str] = "",
        *,
        position: int = 0,
        rows: list[StoredRow] | None = None,
        ranges: list[StoredRange] | None = None,
        key_limit: KeyLimit | None = None,
        **options: object,
    ) -> None:
        self.stream = AssignedPartition(
            PartitionRef("g", "t", 0),
            ConsumerOptions(**options),
            id=1,
            token=1,
            position=position,
            watermark=position,
            claimed=position,
            rows=rows or [],
            ranges=ranges or [],
            key_limit=key_limit,
        )
        self.now = 0.0
        self.log = [MessageValueFactory(offset=offset, key=key) for offset, key in enumerate(keys, 1)]
        self.horizon = len(self.log)
        self.attempts: dict[int, object] = {}

    def read(self, horizon: int | None = None) -> None:
        """What a reader does in one iteration: what is missing, and what comes next."""
        horizon = self.horizon if horizon is None else horizon
        stream = self.stream
        if (span := stream.to_scan()) is not None:
            keys = [(m.offset, m.key) for m in self.log if span[0] < m.offset <= span[1]]
            stream.queues.scanned(*span, keys[: window.SCAN_LIMIT], self.now)
        if asked := stream.missing(horizon):
            there = {m.offset: m for m in self.log}
            asked = asked[: fitting([there[o].size for o, _ in asked if o in there], stream.loadable)]
            stream.add_missing(asked, {o: (None, there[o]) for o, _ in asked if o in there}, self.now)
        if (read := stream.next_read(horizon)) is not None:
            seen = [m.offset for m in self.log if read.since < m.offset <= read.start][: read.looks]
            messages = [m for m in self.log if m.offset > read.start and m.offset <= (read.end or m.offset)]
            messages = messages[: read.limit]
            count = fitting([message.size for message in messages], read.size)
            found = Found(seen, messages[:count], cut=count < len(messages))
            stream.take_in(read, found, horizon, self.now)

    def settle(self, most: int = 100, flush: bool = False, of_a_queue: int | None = None) -> SettlePlan | None:
        executions = self.stream.choose(most, of_a_queue)
        self.attempts.update((attempt.offset, attempt) for execution in executions for attempt in execution.attempts)
        plan = settling.plan(self.stream, self.now, 0.0 if flush else 1.0, executions)
        check_bounds(self.stream)
        return plan

    def planned(self, most: int = 100, flush: bool = False) -> SettlePlan:
        return there(self.settle(most, flush))

    def iterate(self) -> None:
        self.read()
        self.settle()

    def load(self) -> list[int]:
        """Load what is due; every row is as it was written last, every message is there."""
        offsets = self.stream.due_rows(self.now, self.stream.options.batch_size)
        for offset in offsets:
            count = self.stream.entries[offset].count
            row = StoredRow(offset, False, NOT_IN_FLIGHT, count, 0.0, self.log[offset - 1].key)
            arrivals.load(self.stream, offset, row, self.log[offset - 1], self.now)
        return offsets

    def finish(self, offset: int, outcome: Outcome = SUCCESS) -> bool:
        return changes.finish(self.stream, self.attempts[offset], outcome, self.now)

    def finish_each(self, *offsets: int) -> None:
        for offset in offsets:
            self.finish(offset)

    def finish_all(self) -> None:
        """Finish what is with handlers."""
        self.finish_each(*(offset for offset, attempt in self.attempts.items() if attempt.outcome is None))

    @property
    def marks(self) -> tuple[int, int]:
        return self.stream.window.position, self.stream.writes.watermark


def there(plan: SettlePlan | None) -> SettlePlan:
    assert plan is not None
    return plan


def test_a_nacked_message_holds_the_watermark_until_it_is_acked() -> None:
    hosted = Hosted([""] * 5)
    hosted.iterate()
    hosted.finish_each(1, 2, 4, 5)
    hosted.finish(3, RETRY)
    hosted.settle()
    assert hosted.marks == (5, 2)
    hosted.now = 10.0
    assert hosted.load() == [3]
    hosted.settle()
    hosted.finish(3)
    hosted.settle()
    assert hosted.marks == (5, 5)


def test_the_watermark_is_the_highest_contiguously_acked_offset() -> None:
    hosted = Hosted([""] * 5)
    hosted.iterate()
    hosted.finish_each(3, 1, 2)
    hosted.settle()
    assert hosted.marks == (3, 3)
    hosted.finish(5)
    hosted.settle()
    assert hosted.marks == (3, 3)
    hosted.finish(4)
    hosted.settle()
    assert hosted.marks == (5, 5)


def test_an_ack_is_told_when_it_is_written_and_not_while_it_waits_in_memory() -> None:
    hosted = Hosted([""] * 3)
    hosted.read(horizon=1)
    hosted.settle()
    hosted.finish_each(1, 3)
    plan = hosted.planned()
    assert [attempt.offset for attempt in plan.settled] == [1], "3 is above what is final, and has no row yet"
    assert hosted.settle() is None
    plan = hosted.planned(flush=True)
    assert ([attempt.offset for attempt in plan.settled], [row.offset for row in plan.rows]) == ([3], [3])
    hosted.finish(2)
    hosted.read()
    plan = hosted.planned()
    assert (plan.position, [attempt.offset for attempt in plan.settled]) == (3, [2])


def test_a_batch_in_which_everything_succeeds_writes_one_row_and_no_other() -> None:
    hosted = Hosted([""] * 50)
    hosted.iterate()
    hosted.finish_each(*range(1, 51))
    plan = hosted.planned()
    assert (plan.position, plan.watermark, plan.rows, plan.deletes, plan.dead) == (50, 50, (), (), ())


def test_the_claim_is_written_with_the_plan_that_precedes_the_handlers() -> None:
    hosted = Hosted([""] * 5)
    hosted.read()
    plan = hosted.planned(most=3)
    assert plan.claimed == 3
    assert [attempt.number for execution in plan.executions for attempt in execution.attempts] == [1, 1, 1]


def test_a_failed_message_holds_its_own_key_only() -> None:
    hosted = Hosted("abab")
    hosted.iterate()
    assert sorted(hosted.attempts) == [1, 2, 3, 4]
    hosted.finish(3, UNSTARTED)
    hosted.finish(1, RETRY)
    hosted.finish_each(2, 4)
    hosted.attempts.clear()
    hosted.settle()
    assert hosted.attempts == {}
    assert hosted.marks == (4, 0)  # 3 was claimed with a row, so that the position could pass it


def test_a_failed_message_holds_its_partition_if_that_is_the_order() -> None:
    hosted = Hosted("abab", ordering="partition")
    hosted.iterate()
    for offset in (4, 3, 2):
        hosted.finish(offset, UNSTARTED)
    hosted.finish(1, RETRY)
    hosted.attempts.clear()
    hosted.settle()
    assert hosted.attempts == {}
    assert hosted.marks == (1, 0)


def test_a_failed_message_holds_nothing_without_an_order() -> None:
    hosted = Hosted("aaaa", ordering="none")
    hosted.read()
    hosted.settle(most=2)
    hosted.finish(1, RETRY)
    hosted.settle()
    assert sorted(hosted.attempts) == [1, 2, 3, 4]


def test_a_postponed_or_released_message_is_not_charged() -> None:
    hosted = Hosted([""])
    hosted.read()
    for attempt, outcome in ((1, UNSTARTED), (1, Outcome(POSTPONED, 1.0)), (1, RETRY), (2, UNSTARTED), (2, RETRY)):
        hosted.settle()
        assert hosted.attempts[1].number == attempt
        hosted.finish(1, outcome)
        hosted.settle(most=0)
        hosted.now += 20
        hosted.load()
    hosted.settle()
    assert hosted.attempts[1].number == 3


def test_a_dead_letter_counts_as_acked_in_the_plan_that_copies_it() -> None:
    hosted = Hosted([""] * 2)
    hosted.iterate()
    hosted.finish(2, Outcome(DEAD, error="no"))
    plan = hosted.planned()
    assert [letter.message.offset for letter in plan.dead] == [2]
    assert plan.rows == (RowWrite(2, True, NOT_IN_FLIGHT, 1, 0.0, "no"),)  # 1 is unsettled: the position stays


def test_fewer_messages_in_doubt_are_looked_at_together_where_they_are_heavy() -> None:
    rows = [StoredRow(offset, False, TOGETHER, 1, 0.0, "") for offset in range(1, 401)]
    stream = Hosted("x" * 400, rows=rows, where=Filter({"key": "y"})).stream
    assert stream.unfiltered_in_doubt(200) == list(range(1, 201))
    heavy = MessageValueFactory(offset=1, key="x", payload="x" * (stream.budget.half // 7))
    arrivals.load(stream, 1, rows[0], heavy, 0.0)
    assert stream.unfiltered_in_doubt(200) == [201, 202, 203]


def lingering() -> Hosted:
    """A partition with three messages, of which the first has been acked: its position has moved, and waits."""
    hosted = Hosted([""] * 3)
    hosted.read()
    hosted.settle(most=1)
    hosted.finish(1)
    assert settling.plan(hosted.stream, 0.0, 1.0, [], linger=0.05) is None
    assert hosted.stream.writes.lingers_since is not None
    assert hosted.stream.active
    assert not hosted.stream.settled_up
    assert hosted.stream.window.position == 1
    return hosted


def test_a_position_that_waits_goes_with_the_next_claim() -> None:
    hosted = lingering()
    executions = hosted.stream.choose(1)
    plan = there(settling.plan(hosted.stream, 0.01, 1.0, executions, linger=0.05))
    assert (plan.position, plan.claimed, [one.offset for one in plan.settled]) == (1, 2, [1])
    assert hosted.stream.writes.lingers_since is None


@pytest.mark.parametrize(("now", "linger"), [(0.076, 0.05), (0.041, 0.0)])
def test_a_position_waits_no_longer_than_it_may(now: float, linger: float) -> None:
    hosted = lingering()
    assert settling.plan(hosted.stream, 0.04, 1.0, [], linger=0.05) is None
    plan = there(settling.plan(hosted.stream, now, 1.0, [], linger))
    assert (plan.position, [one.offset for one in plan.settled]) == (1, [1])
    assert settling.plan(hosted.stream, now, 1.0, [], linger) is None
    assert hosted.stream.writes.lingers_since is None


@pytest.mark.parametrize(("since", "until"), [(0.001, 0.075), (0.024, 0.075), (0.026, 0.1), (7.001, 7.075)])
def test_positions_end_their_wait_at_the_same_moments(since: float, until: float) -> None:
    """They wait as long as they have to, and then for the next moment, so that one statement writes them."""
    assert not settling._has_waited(since, until - 0.001, 0.05)
    assert settling._has_waited(since, until + 0.001, 0.05)
    assert settling._has_waited(since, since, 0.0)


def test_a_position_that_waits_is_in_the_last_plan() -> None:
    plan = settling.release_plan(lingering().stream, 0.01)
    assert (plan.position, plan.rows, [one.offset for one in plan.settled]) == (1, (), [1])


@pytest.mark.parametrize("outcome", [RETRY, Outcome(ACKED, result="1", kept=60.0)], ids=["a retry", "a reply"])
def test_what_needs_a_row_or_is_waited_for_does_not_wait(outcome: Outcome) -> None:
    hosted = Hosted([""] * 3)
    hosted.read()
    hosted.settle(most=1)
    hosted.finish(1, outcome)
    plan = there(settling.plan(hosted.stream, 0.0, 1.0, [], linger=0.05))
    assert plan.position == 1


def test_an_ack_that_a_handlers_transaction_has_stored_waits_too() -> None:
    """Its row is deleted with the position that passes it. Until then it keeps the message from being handled again."""
    hosted = Hosted([""] * 3, atomic=True)
    hosted.iterate()
    hosted.finish(3, COMMITTED)
    assert settling.plan(hosted.stream, 0.0, 1.0, [], linger=0.05) is None  # the position has not moved
    hosted.finish(1, COMMITTED)
    assert settling.plan(hosted.stream, 0.01, 1.0, [], linger=0.05) is None
    assert hosted.stream.writes.lingers_since is not None
    hosted.finish(2, COMMITTED)
    assert settling.plan(hosted.stream, 0.04, 1.0, [], linger=0.05) is None
    plan = there(settling.plan(hosted.stream, 0.076, 1.0, [], linger=0.05))
    assert (plan.position, list(plan.deletes), plan.rows) == (3, [1, 2, 3], ())
    assert sorted(one.offset for one in plan.settled) == [1, 2, 3]
    assert hosted.stream.settled_up


@pytest.mark.parametrize("outcome", [SUCCESS, COMMITTED], ids=["in memory", "stored"])
def test_an_ack_that_waits_does_not_hold_a_heavy_payload(outcome: Outcome) -> None:
    hosted = Hosted([""] * 2, atomic=outcome.committed)
    hosted.log[1] = hosted.log[1]._replace(payload="x" * (HEAVY + 1))
    hosted.iterate()
    hosted.finish(1, outcome)
    hosted.finish(2, outcome)
    assert settling.plan(hosted.stream, 0.0, 1.0, [], linger=0.05) is None
    plan = there(settling.plan(hosted.stream, 0.1, 1.0, []))
    assert [one.attempt.message.payload for one in plan.settled] == ["1", None]


def test_a_position_that_a_handlers_transaction_has_moved_waits_too() -> None:
    hosted = Hosted([""] * 3, atomic=True, batch=True)
    hosted.iterate()
    reports = [(attempt, Outcome(ACKED, committed=True, moved_to=3)) for attempt in hosted.attempts.values()]
    assert hosted.stream.finish_all(reports, 0.0) == 3
    assert settling.plan(hosted.stream, 0.0, 1.0, [], linger=0.05) is None
    assert not hosted.stream.settled_up
    plan = there(settling.plan(hosted.stream, 0.076, 1.0, [], linger=0.05))
    assert (plan.position, len(plan.settled)) == (3, 3)


def test_claims_leave_rows_that_are_to_be_deleted_for_a_later_plan() -> None:
    hosted = Hosted([""] * 4, atomic=True)
    hosted.read()
    for offset, now in ((1, 0.0), (2, 0.01), (3, 0.06), (4, 0.08)):
        hosted.now = now
        executions = hosted.stream.choose(1)
        plan = there(settling.plan(hosted.stream, now, 1.0, executions, linger=0.05))
        assert (plan.position, plan.claimed, [one.offset for one in plan.settled]) == (
            offset - 1,
            offset,
            [offset - 1] if offset > 1 else [],
        )
        assert list(plan.deletes) == ([1, 2, 3] if offset == 4 else [])
        (attempt,) = executions[0].attempts
        assert changes.finish(hosted.stream, attempt, COMMITTED, now)
    plan = there(settling.plan(hosted.stream, 0.09, 1.0, []))
    assert list(plan.deletes) == [4]


def test_a_last_plan_leaves_no_row_that_is_to_be_deleted() -> None:
    hosted = Hosted([""] * 2, atomic=True)
    hosted.read()
    for _ in range(2):
        executions = hosted.stream.choose(1)
        assert settling.plan(hosted.stream, 0.0, 1.0, executions, linger=0.05) is not None
        assert changes.finish(hosted.stream, executions[0].attempts[0], COMMITTED, 0.0)
    plan = settling.release_plan(hosted.stream, 0.0)
    assert (plan.position, list(plan.deletes)) == (2, [1, 2])


def test_an_ack_that_a_handlers_transaction_has_stored_does_not_wait_where_its_caller_does() -> None:
    hosted = Hosted([""] * 3, atomic=True)
    hosted.log[0] = hosted.log[0]._replace(headers=json.dumps({REPLY: 60}))
    hosted.read()
    hosted.settle(most=1)
    hosted.finish(1, COMMITTED)
    plan = there(settling.plan(hosted.stream, 0.0, 1.0, [], linger=0.05))
    assert (plan.position, [one.offset for one in plan.settled]) == (1, [1])


@pytest.mark.parametrize("linger", [0.0, 0.05])
@pytest.mark.parametrize(("atomic", "outcome"), [(False, RETRY), (True, COMMITTED), (True, RETRY)])
def test_outcomes_behind_a_slow_message_do_not_put_off_the_flush(atomic: bool, outcome: Outcome, linger: float) -> None:
    """The first handler goes on, and an ack waits for it in memory, while others end and are stored."""
    hosted = Hosted([""] * 10, atomic=atomic)
    hosted.iterate()
    hosted.finish(2)
    for offset, now in enumerate((0.0, 0.3, 0.6, 0.9, 1.2), 3):
        hosted.finish(offset, outcome)
        settling.plan(hosted.stream, now, 1.0, [], linger)
        settling.plan(hosted.stream, now + 0.1, 1.0, [], linger)
    assert hosted.stream.window.position >= 3


def test_a_flush_takes_a_position_that_waits_along() -> None:
    hosted = Hosted([""] * 3)
    hosted.iterate()
    hosted.finish(2)
    assert settling.plan(hosted.stream, 0.0, 1.0, [], linger=9.0) is None
    plan = there(settling.plan(hosted.stream, 1.0, 1.0, [], linger=9.0))
    assert (plan.position, [row.offset for row in plan.rows], len(plan.settled)) == (3, [1, 3], 1)


def test_a_message_in_doubt_is_dispatched_alone_and_dead_lettered_only_if_it_was_alone() -> None:
    rows = [StoredRow(1, False, TOGETHER, 3, 0.0, ""), StoredRow(2, False, ALONE, 3, 0.0, "")]
    hosted = Hosted([""] * 2, position=2, rows=rows, max_attempts=3)
    stream = hosted.stream
    assert stream.choose(10) == []
    assert stream.in_doubt.first() == 1
    arrivals.load(stream, 1, rows[0], hosted.log[0], 0.0)
    (execution,) = stream.choose_alone(1, 0.0)
    assert (execution.attempts[0].number, execution.attempts[0].deaths > 0) == (4, True)
    plan = there(settling.plan(stream, 0.0, 1.0, [execution]))
    assert plan.rows[0].in_flight == ALONE
    changes.finish(stream, execution.attempts[0], SUCCESS, 0.0)
    assert stream.in_doubt.first() == 2
    arrivals.load(stream, 2, rows[1], hosted.log[1], 0.0)
    assert stream.choose_alone(2, 0.0) == []
    plan = there(settling.plan(stream, 0.0, 1.0, []))
    assert [letter.message.offset for letter in plan.dead] == [2]


def taken_over(row: StoredRow, max_attempts: int | None = None) -> Hosted:
    """What an owner finds that takes the only message over."""
    hosted = Hosted([""], position=1, rows=[row], max_attempts=max_attempts)
    arrivals.load(hosted.stream, 1, row, hosted.log[0], 0.0)
    return hosted


def test_without_a_bound_of_attempts_the_deaths_in_a_row_count() -> None:
    """Failures before them count for nothing; each takeover finds what the owner before has written."""
    row = StoredRow(1, False, TOGETHER, 41, 0.0, "")
    for deaths in range(1, MOST_DEATHS):
        assert row.in_flight == deaths
        hosted = taken_over(row)
        (execution,) = hosted.stream.choose_alone(1, 0.0)
        assert execution.attempts[0].deaths
        plan = there(settling.plan(hosted.stream, 0.0, 1.0, [execution]))
        row = row._replace(in_flight=plan.rows[0].in_flight, retry_count=plan.rows[0].retry_count)
    hosted = taken_over(row)
    assert hosted.stream.choose_alone(1, 0.0) == []
    plan = there(settling.plan(hosted.stream, 0.0, 1.0, []))
    (dead_letter,) = plan.dead
    assert dead_letter.attempts == 41 + MOST_DEATHS - 1
    assert dead_letter.error.startswith(f"its consumer process ended {MOST_DEATHS} times")


@pytest.mark.parametrize("mark", [TOGETHER, ALONE, ALONE + 1, MOST_DEATHS, 300])
def test_with_a_bound_of_attempts_the_deaths_do_not_count(mark: int) -> None:
    """Those of an earlier release, of which a row does not tell more than one, and those of a consumer that had no
    bound then."""
    hosted = taken_over(StoredRow(1, False, mark, 8, 0.0, ""), max_attempts=9)
    (execution,) = hosted.stream.choose_alone(1, 0.0)
    plan = there(settling.plan(hosted.stream, 0.0, 1.0, [execution]))
    assert (plan.rows[0].in_flight, plan.rows[0].retry_count) == (mark + 1, 9)
    hosted = taken_over(StoredRow(1, False, mark, 9, 0.0, ""), max_attempts=9)
    dispatched = hosted.stream.choose_alone(1, 0.0)
    plan = there(settling.plan(hosted.stream, 0.0, 1.0, dispatched))
    assert bool(dispatched) == (mark == TOGETHER)
    assert len(plan.dead) == (mark > TOGETHER)


def test_a_failure_between_two_deaths_begins_their_count_anew() -> None:
    hosted = taken_over(StoredRow(1, False, MOST_DEATHS - 1, 9, 0.0, ""))
    stream = hosted.stream
    (execution,) = stream.choose_alone(1, 0.0)
    settling.plan(stream, 0.0, 1.0, [execution])
    changes.finish(stream, execution.attempts[0], RETRY, 0.0)
    hosted.settle(most=0)
    hosted.now = 20.0
    hosted.load()
    plan = hosted.planned()
    assert (plan.rows[0].in_flight, plan.rows[0].retry_count) == (TOGETHER, 11)


def test_an_outcome_that_comes_after_an_overrun_changes_nothing() -> None:
    hosted = Hosted([""])
    hosted.iterate()
    attempt = hosted.attempts[1]
    assert hosted.finish(1, RETRY)
    assert not changes.finish(hosted.stream, attempt, SUCCESS, 0.0)
    hosted.settle()
    assert hosted.marks == (1, 0)


def test_the_position_does_not_pass_what_is_not_final() -> None:
    hosted = Hosted([""] * 4)
    hosted.read(horizon=2)
    hosted.settle()
    hosted.finish_each(*range(1, 5))
    hosted.settle()
    assert hosted.marks == (2, 2)
    hosted.now = 5.0
    plan = hosted.planned(flush=True)
    assert [(row.offset, row.acked) for row in plan.rows] == [(3, True), (4, True)]
    hosted.read()
    plan = hosted.planned()
    assert (plan.position, plan.deletes) == (4, (3, 4))


def test_messages_for_another_group_are_passed() -> None:
    hosted = Hosted()
    others = MessageValueFactory(key="k", target_group="other")
    mine = MessageValueFactory(offset=2, key="k", target_group="g")
    hosted.stream.take_in(Read(0, 10), Found([], [others, mine]), 2)
    hosted.settle()
    assert sorted(hosted.attempts) == [2]
    hosted.finish(2)
    hosted.settle()
    assert hosted.marks == (2, 2)


def test_what_a_filter_leaves_out_before_a_slow_message_is_passed_and_counted() -> None:
    hosted = Hosted("nnynny", where=Filter({"key": "y"}))
    hosted.log[4] = hosted.log[4]._replace(target_group="other")  # is none of the filter's
    hosted.iterate()
    assert hosted.marks == (2, 2)
    hosted.finish(3)
    plan = hosted.planned()
    assert (hosted.marks, plan.filtered) == ((5, 5), 3)
    hosted.finish(6)
    hosted.settle()
    assert (hosted.marks, hosted.stream.active) == ((6, 6), False)


def test_what_was_blocked_behind_a_failed_batch_comes_together_and_what_failed_one_by_one() -> None:
    hosted = Hosted("abababab", batch=True, batch_size=4)
    hosted.read()
    sizes = []
    for turn in range(9):
        plan = hosted.settle()
        for execution in plan.executions if plan else []:
            sizes.append(([attempt.offset for attempt in execution.attempts], execution.apart))
            for attempt in execution.attempts:
                changes.finish(hosted.stream, attempt, SUCCESS if turn else RETRY, hosted.now)
        hosted.now += 11.0
        hosted.load()
        hosted.read()
    assert sizes == [([1, 2, 3, 4], False), ([1, 2, 3, 4], True), ([5, 6, 7, 8], False)]


def test_what_was_blocked_comes_together_for_the_next_owner_too() -> None:
    rows = [StoredRow(1, False, NOT_IN_FLIGHT, 1, 0.0, "a")]
    rows += [StoredRow(offset, False, NOT_IN_FLIGHT, 0, 0.0, "a") for offset in (2, 3, 4)]
    hosted = Hosted("aaaa", position=4, rows=rows, batch=True, batch_size=10)
    sizes = []
    for _ in range(3):
        hosted.load()
        plan = hosted.settle()
        for execution in plan.executions if plan else []:
            sizes.append([attempt.offset for attempt in execution.attempts])
            for attempt in execution.attempts:
                hosted.finish(attempt.offset)
    assert sizes == [[1], [2, 3, 4]]


@pytest.mark.parametrize("outcome", [Outcome(POSTPONED, 1.0), UNSTARTED])
def test_a_batch_that_was_postponed_or_could_not_start_comes_together_again(outcome: Outcome) -> None:
    rows = [StoredRow(offset, False, NOT_IN_FLIGHT, 0, 0.0, "a") for offset in (1, 2, 3)]
    hosted = Hosted("aaa", position=3, rows=rows, batch=True, batch_size=10)
    sizes = []
    for _ in range(4):
        hosted.load()
        plan = hosted.settle()
        for execution in plan.executions if plan else []:
            sizes.append(len(execution.attempts))
            for attempt in execution.attempts:
                hosted.finish(attempt.offset, SUCCESS if len(sizes) > 1 else outcome)
        hosted.now += 100.0
    assert sizes == [3, 3]


def test_keys_whose_first_messages_failed_again_do_not_stand_still_for_those_loaded_behind_them() -> None:
    keys = "ab" * 20
    rows = [StoredRow(offset, False, NOT_IN_FLIGHT, 0, 0.0, key) for offset, key in enumerate(keys, 1)]
    hosted = Hosted(keys, position=len(keys), rows=rows, batch_size=5)
    done: set[int] = set()
    for _ in range(200):
        hosted.load()
        executions = hosted.stream.choose(16, 2)
        settling.plan(hosted.stream, hosted.now, 1.0, executions)
        for execution in executions:
            while (attempt := execution.start_next()) is not None:
                if attempt.offset % 3 == 1 and attempt.number == 1:
                    for later in execution.stop():
                        changes.finish(hosted.stream, later, UNSTARTED, hosted.now)
                    changes.finish(hosted.stream, attempt, RETRY, hosted.now)
                else:
                    changes.finish(hosted.stream, attempt, SUCCESS, hosted.now)
                    done.add(attempt.offset)
        hosted.now += 11.0
    assert done == set(range(1, len(keys) + 1))


def test_a_slow_key_does_not_keep_its_neighbours_from_being_read() -> None:
    hosted = Hosted(["slow"] * 30 + ["other"], batch_size=10)
    hosted.read()
    hosted.settle(most=1)
    for _ in range(10):  # its handler goes on and on
        hosted.now += 1.0
        hosted.read()
        hosted.settle(most=1)
    assert 31 in hosted.attempts


def test_purged_messages_leave_no_trace_in_the_counters() -> None:
    hosted = Hosted("aaa")
    hosted.read()
    hosted.settle(most=1)
    hosted.finish(1, RETRY)
    plan = hosted.settle()
    assert plan.ranges == (StoredRange("a", 1, 3, 2),)
    hosted.now = 10.0
    hosted.log.clear()
    for offset in hosted.stream.due_rows(hosted.now, 10):
        arrivals.load(hosted.stream, offset, None, None, hosted.now)
    hosted.read()
    plan = hosted.settle()
    assert [(one.low, one.high) for one in plan.ranges] == [(3, 3)]
    assert not hosted.stream.queues._by_name
    assert hosted.marks == (3, 3)


def test_due_rows_are_loaded_as_far_as_they_can_be_dispatched() -> None:
    rows = [StoredRow(offset, False, NOT_IN_FLIGHT, 1, 0.0, "") for offset in range(1, 501)]
    hosted = Hosted([""] * 500, position=500, rows=rows, batch_size=10)
    for _ in range(50):
        hosted.load()
    assert hosted.stream.queues.ready <= 40
    for _ in range(200):
        hosted.settle(most=10)
        hosted.finish_all()
        hosted.load()
    hosted.settle()
    assert hosted.marks == (500, 500)


def test_what_is_settled_is_forgotten() -> None:
    hosted = Hosted([f"k{offset}" for offset in range(1, 201)], batch_size=200)
    hosted.read()
    hosted.settle(most=200)
    hosted.finish_each(*range(1, 201))
    hosted.settle()
    hosted.settle()
    stream = hosted.stream
    assert not any(
        (
            stream.entries,
            stream.queues._by_name,
            stream.queues.candidates,
            stream.delays.next_due(),
            stream.writes.unsettled,
        )
    )


def test_a_release_plan_releases_uncharged_and_keeps_the_acks() -> None:
    hosted = Hosted([""] * 3)
    hosted.iterate()
    hosted.finish(2)
    plan = settling.release_plan(hosted.stream, 0.0)
    assert plan.release
    assert plan.position == 0
    assert [(row.offset, row.acked) for row in plan.rows] == [(2, True)]
    assert hosted.stream.lease.lost


def waiting_behind_the_first(keys: str | list[str], **options: object) -> Hosted:
    """Everything was read, and the first message waits for its retry."""
    hosted = Hosted(keys, **options)
    hosted.read()
    hosted.settle(most=1)
    hosted.finish(1, RETRY)
    for _ in range(40):
        hosted.iterate()
        hosted.finish_all()
    return hosted


def test_any_number_waits_behind_a_key_in_one_row_and_the_position_passes_them() -> None:
    hosted = waiting_behind_the_first("a" * 300 + "b", batch_size=5)
    assert hosted.marks == (301, 0)
    assert list(hosted.attempts) == [1, 301]
    assert [one.stored() for one in hosted.stream.ranges.by_key.values()] == [StoredRange("a", 1, 300, 299)]
    assert len(hosted.stream.entries) == 1, "only the waiting one is remembered"


def test_what_waits_in_a_range_is_dispatched_in_order_once_its_key_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "SCAN_LIMIT", 7)
    hosted = waiting_behind_the_first("ab" + "a" * 20 + "b" * 20 + "a" * 10, batch_size=4)
    hosted.attempts.clear()
    hosted.now = 10.0
    order, lows = [], []
    for _ in range(60):
        hosted.load()
        hosted.read()
        plan = hosted.settle()
        lows += [one.low for one in plan.ranges] if plan else []
        for offset in sorted(offset for offset, attempt in hosted.attempts.items() if attempt.outcome is None):
            order.append(offset)
            hosted.finish(offset)
    assert order == [1, *range(3, 23), *range(43, 53)]
    assert lows == sorted(lows)
    assert hosted.marks == (52, 52)


def test_what_is_acked_and_not_written_yet_is_not_read_back_out_of_its_range() -> None:
    """What was loaded behind those that are dispatched fills the memory, and is put back into the range: only that."""
    ranges = [StoredRange(key, 0, 51, 10) for key in "abcde"]
    rows = [StoredRow(1, False, NOT_IN_FLIGHT, 1, 0.0, "slow")]
    hosted = Hosted(["slow", *"abcde" * 10], ranges=ranges, position=51, batch_size=3, rows=rows)
    order: list[int] = []
    hosted.load()
    for _ in range(60):
        for _ in range(4):
            hosted.read()
        hosted.settle(most=2, flush=True)
        hosted.now += 1.0
        handed = [offset for offset in sorted(hosted.attempts) if offset > 1]
        for offset in handed:
            hosted.finish(offset)
            del hosted.attempts[offset]
        order += handed
    assert sorted(order) == list(range(2, 52))
    assert [offset for offset in order if offset % 5 == 2] == list(range(2, 52, 5))


def test_a_range_keeps_its_key_back_for_the_next_owner_too() -> None:
    hosted = Hosted("aaaab", position=3, ranges=[StoredRange("a", 0, 3, 3)], batch_size=2)
    order = []
    for _ in range(12):
        hosted.iterate()
        for offset in sorted(offset for offset, attempt in hosted.attempts.items() if attempt.outcome is None):
            order.append(offset)
            hosted.finish(offset)
    assert [offset for offset in order if offset != 5] == [1, 2, 3, 4]
    assert hosted.marks == (5, 5)


def test_an_acked_message_that_a_range_may_come_to_cover_keeps_its_row() -> None:
    """Commits in the order 3, 1, 2, 4 of one key, and 1 fails: the range from 1 to 4 would hold the acked 3."""
    hosted = Hosted()
    everything = [MessageValueFactory(offset=offset, key="a") for offset in (1, 2, 3, 4)]
    hosted.log = [everything[2]]
    hosted.read(horizon=0)
    hosted.settle()
    hosted.finish(3)
    hosted.log = everything
    for _ in range(2):
        hosted.stream.window.alarm()
        hosted.read(horizon=4)
    hosted.settle(most=1)
    hosted.finish(1, RETRY)
    plan = hosted.settle()
    assert plan.ranges == (StoredRange("a", 1, 4, 2),)
    assert [(row.offset, row.acked) for row in plan.rows] == [(1, False), (3, True)]
    assert plan.deletes == ()
    assert hosted.marks == (4, 0)
    successor = Hosted(
        "aaaa",
        position=4,
        rows=[StoredRow(1, False, NOT_IN_FLIGHT, 1, 0.0, "a"), StoredRow(3, True, NOT_IN_FLIGHT, 1, 0.0, "a")],
        ranges=plan.ranges,
    )
    assert successor.settle() is None, "the acked row must stay"


def test_a_range_that_a_person_has_acked_a_part_of_does_not_deliver_that() -> None:
    hosted = Hosted("aaa", position=3, ranges=[StoredRange("a", 0, 3, 3)])
    span = hosted.stream.to_scan()
    hosted.stream.queues.scanned(*span, [(1, "a"), (2, "a"), (3, "a")], 0.0)
    asked = hosted.stream.missing(3)
    rows = {2: StoredRow(2, True, NOT_IN_FLIGHT, 0, 0.0, "a")}
    hosted.stream.add_missing(asked, {o: (rows.get(o), hosted.log[o - 1]) for o, _ in asked}, 0.0)
    deleted = hosted.settle().deletes
    assert sorted(hosted.attempts) == [1, 3]
    hosted.finish_each(1, 3)
    assert deleted + hosted.settle().deletes == (2, 1, 3)
    assert hosted.marks == (3, 3)


@pytest.mark.parametrize("ordering", ["none", "partition"])
def test_a_range_is_used_up_by_a_consumer_with_another_order_too(ordering: str) -> None:
    hosted = Hosted("aaab", position=3, ranges=[StoredRange("a", 0, 3, 3)], ordering=ordering, batch_size=2)
    for _ in range(12):
        hosted.iterate()
        for offset in sorted(offset for offset, attempt in hosted.attempts.items() if attempt.outcome is None):
            hosted.finish(offset)
    assert hosted.marks == (4, 4)
    assert not list(hosted.stream.ranges.by_key.values())


def test_no_more_heads_than_their_limit_are_remembered_before_reading_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "HEADS_LIMIT", 5)
    hosted = Hosted([f"k{number}" for number in range(50)], batch_size=2)
    for _ in range(60):
        hosted.iterate()
        for offset in [offset for offset, attempt in hosted.attempts.items() if attempt.outcome is None]:
            hosted.finish(offset, RETRY)
    assert 5 <= len(hosted.attempts) < 20
    for _ in range(200):
        hosted.now += 10.0
        hosted.load()
        hosted.iterate()
        hosted.finish_all()
    assert hosted.marks == (50, 50)


def test_no_more_than_a_window_is_read_beyond_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOW_LIMIT", 10)
    hosted = Hosted([""] * 50, batch_size=4)

    def work() -> None:
        hosted.stream.window.alarm()
        hosted.iterate()
        hosted.finish_all()
        hosted.now += 1.0

    hosted.horizon = 0
    for _ in range(40):
        work()
    assert 10 <= len(hosted.attempts) <= 10 + 2 * 4
    assert hosted.marks == (0, 0)
    hosted.horizon = 50  # it has ended
    for _ in range(60):
        work()
    assert len(hosted.attempts) == 50
    assert hosted.marks == (50, 50)


def test_a_successor_reads_on_although_acked_rows_fill_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOW_LIMIT", 10)
    rows = [StoredRow(offset, True, NOT_IN_FLIGHT, 1, 0.0, "") for offset in range(2, 41)]
    hosted = Hosted([""] * 50, rows=rows, batch_size=4)
    for _ in range(60):
        hosted.iterate()
        hosted.finish_all()
    assert sorted(hosted.attempts) == [1, *range(41, 51)]
    assert hosted.marks == (50, 50)


def test_an_atomic_batch_that_follows_the_position_moves_it() -> None:
    hosted = Hosted([""] * 4, batch=True, atomic=True, batch_size=3)
    hosted.read(horizon=4)
    plan = hosted.planned()
    (execution,) = plan.executions
    assert [attempt.offset for attempt in execution.attempts] == [1, 2, 3]
    assert (execution.position, execution.move_for(execution.attempts)) == (0, 3)
    settling.move(hosted.stream, 3)
    for attempt in execution.attempts:
        assert changes.finish(hosted.stream, attempt, COMMITTED, 0.0)
    assert hosted.stream.window.position == 3
    check_bounds(hosted.stream)


def test_a_failed_batch_comes_back_one_by_one() -> None:
    hosted = Hosted([""] * 5, batch=True, batch_size=3)
    hosted.iterate()
    for offset in (1, 2, 3):
        hosted.finish(offset, RETRY)
    hosted.now = 10.0
    found = []
    for _ in range(2):
        hosted.load()
        plan = hosted.planned()
        found += [(len(execution.attempts), execution.apart) for execution in plan.executions]
        hosted.finish_all()
    assert sorted(found) == [(2, False), (3, True)], "claimed together, and handled one by one"


def test_those_that_waited_behind_a_failed_one_come_together_again() -> None:
    hosted = Hosted(["a"] * 12, batch=True, batch_size=10)
    everything, hosted.log = hosted.log, hosted.log[:1]
    hosted.read(horizon=1)
    hosted.settle()
    hosted.finish(1, RETRY)
    hosted.log = everything
    hosted.stream.window.alarm()
    for _ in range(3):
        hosted.iterate()
    assert hosted.marks == (12, 0), "2 to 12 are blocked"
    batches = []
    hosted.now = 10.0
    for _ in range(6):
        hosted.load()
        hosted.iterate()
        batch = [
            offset for offset in hosted.attempts if hosted.stream.entries[offset].attempt is hosted.attempts[offset]
        ]
        batches.append(batch)
        for offset in batch:
            hosted.finish(offset)
            del hosted.attempts[offset]
    assert [batch for batch in batches if batch] == [[1], list(range(2, 12)), [12]]
    assert hosted.marks == (12, 12)


def test_a_batch_waits_for_the_horizon_only_as_long_as_it_has_to() -> None:
    """What stood above the horizon when an atomic batch was chosen is chosen when the horizon has risen."""
    hosted = Hosted(["", "a"], batch=True, atomic=True)
    hosted.log[0] = MessageValueFactory(target_group="another")
    hosted.read(horizon=1)
    assert hosted.settle().position == 1
    assert not hosted.attempts  # 1 is for another group, and 2 was above the horizon when a batch was chosen
    hosted.read()
    assert hosted.stream.has_candidates
    hosted.settle()
    assert list(hosted.attempts) == [2]


def keys_that_fail_again(keys: int, outcome: Outcome | None, **options: object) -> Hosted:
    """Of so many keys six messages each wait in a range; the first of each comes again, and with it those behind it;
    None: its handler goes on and on. Then another key's messages come."""
    names = [f"k{number}" for number in range(keys)]
    ranges = [StoredRange(name, 0, 6 * keys, 6) for name in names]
    hosted = Hosted([*names * 6, *["other"] * 20], position=6 * keys, ranges=ranges, batch_size=5, **options)
    hosted.horizon = 6 * keys
    everything, hosted.log = hosted.log, hosted.log[: 6 * keys]
    for _ in range(60):
        if hosted.now == 20.0:
            hosted.log, hosted.horizon = everything, len(everything)
            hosted.stream.window.alarm()
        hosted.read()
        hosted.load()
        executions = hosted.stream.choose(100, 3)
        settling.plan(hosted.stream, hosted.now, 1.0, executions)
        check_bounds(hosted.stream)
        for execution in executions:
            attempt = execution.start_next()
            hosted.attempts.update((each.offset, each) for each in execution.attempts)
            if attempt.message.key == "other":
                for each in execution.attempts:
                    hosted.finish(each.offset)
            elif outcome is not None:
                for later in execution.stop():
                    hosted.finish(later.offset, UNSTARTED)
                hosted.finish(attempt.offset, outcome)
        hosted.now += 1.0
    return hosted


@pytest.mark.parametrize("outcome", [Outcome(RETRIED, 1_000.0, "no"), Outcome(POSTPONED, 1_000.0), None])
def test_what_was_taken_up_with_a_message_that_fails_again_keeps_no_other_key_from_being_read(
    outcome: Outcome | None,
) -> None:
    hosted = keys_that_fail_again(8, outcome)
    others = [offset for offset in hosted.attempts if offset > 48]
    assert len(others) == 20, f"room {hosted.stream.room}, ready {hosted.stream.queues.ready}"


def test_a_long_wait_at_the_bottom_lets_no_list_grow_with_what_comes_and_goes_above_it() -> None:
    """The lowest waits for days; keys above it fail, wait in ranges and are settled, again and again."""
    hosted = Hosted("a" * 3 + "bbb" * 1_000, batch_size=10)
    for _ in range(1_500):
        hosted.load()
        hosted.read()
        for execution in hosted.stream.choose(10, 1):
            hosted.attempts[execution.attempts[0].offset] = execution.attempts[0]
        settling.plan(hosted.stream, hosted.now, 1.0, [])
        for offset in [offset for offset, attempt in hosted.attempts.items() if attempt.outcome is None]:
            attempt = hosted.attempts[offset]
            wait = Outcome(RETRIED, 1e9, "no") if offset == 1 else RETRY
            hosted.finish(offset, SUCCESS if offset != 1 and attempt.number > 1 else wait)
        hosted.now += 5.0
    assert len(hosted.attempts) > 500
    assert len(hosted.stream.entries) < 100
    assert len(hosted.stream.writes.unsettled) < 100
    assert len(hosted.stream.ranges._lows) < 100


def test_a_look_writes_only_the_ranges_of_which_it_has_learnt_something() -> None:
    keys = [f"k{number}" for number in range(200)]
    ranges = [StoredRange(key, number, number + 200, 1) for number, key in enumerate(keys)]
    hosted = Hosted(keys * 2, position=400, ranges=ranges, batch_size=2)
    hosted.read()
    assert [one.key for one in hosted.settle(most=0).ranges] == ["k0", "k1"]


def heavy(hosted: Hosted, offsets: range, size: int) -> None:
    for offset in offsets:
        hosted.log[offset - 1] = hosted.log[offset - 1]._replace(payload="x" * size)


def test_no_more_bytes_are_in_memory_than_they_are_meant_for() -> None:
    """Whatever came before: heavy messages may follow light ones at any place."""
    hosted = Hosted([""] * 400, batch_size=100)
    heavy(hosted, range(1, 101), 300)
    heavy(hosted, range(101, 111), 5_000)
    heavy(hosted, range(300, 400, 10), 900)
    hosted.stream.budget.share = 2_000
    hosted.stream.budget.weigh([MessageValueFactory(offset=1)])
    most = [0, 0, 0]
    for _ in range(800):
        hosted.read()
        hosted.settle(most=hosted.stream.queues.ready)
        handed = [offset for offset, attempt in hosted.attempts.items() if attempt.outcome is None]
        assert sum(hosted.attempts[offset].message.size for offset in handed) <= 1_000 or len(handed) == 1
        for offset in handed:
            kind = 0 if offset <= 100 else 1 if offset <= 110 else 2
            most[kind] = max(most[kind], len(handed))
            hosted.finish(offset)
    assert hosted.marks == (400, 400)
    assert most[:2] == [3, 1]
    assert most[2] > 100


def test_a_read_that_its_bytes_have_cut_is_not_the_end_of_what_is_visible() -> None:
    hosted = Hosted([""] * 3)
    heavy(hosted, range(1, 4), 700)
    hosted.stream.budget.share = 1_000
    for offset in (1, 2, 3):
        hosted.read(3)
        assert (hosted.stream.window.final, hosted.stream.window.more) == (offset, True)
        hosted.settle()
        hosted.finish(offset)
    hosted.read(3)
    assert not hosted.stream.window.more


def test_what_handlers_have_is_in_memory_too_and_keeps_others_from_being_read() -> None:
    hosted = Hosted([""] * 20)
    heavy(hosted, range(1, 21), 400)
    hosted.stream.budget.share = 2_000
    for _ in range(10):
        hosted.iterate()
    assert list(hosted.attempts) == [1, 2, 3]
    hosted.finish(1)
    hosted.iterate()
    assert list(hosted.attempts) == [1, 2, 3, 4]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_messages_of_slow_handlers_do_not_pile_up(ordering: str) -> None:
    """The position passes those that have been with their handlers for long, and final reads go on."""
    hosted = Hosted([f"k{number}" for number in range(40)], ordering=ordering)
    heavy(hosted, range(1, 41), 400)
    hosted.stream.budget.share = 1_000
    for _ in range(40):
        hosted.read()
        hosted.settle(flush=True)
        hosted.now += 2.0
    assert hosted.stream.in_flight <= 5
    for offset in range(1, 41):
        hosted.finish(offset)
        hosted.iterate()
    assert hosted.marks == (40, 40)


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_retry_waits_for_no_more_than_those_in_memory_however_many_are_fresh(ordering: str) -> None:
    """What has failed, and what is behind it: handlers always have more than the share."""
    hosted = Hosted([f"k{number % 20}" for number in range(100)], ordering=ordering)
    heavy(hosted, range(1, 101), 600)
    hosted.stream.budget.share = 1_000
    order: list[int] = []
    with_handlers: list[int] = []
    while len(order) < 40:
        hosted.read()
        hosted.load()
        before = set(map(id, hosted.attempts.values()))
        hosted.settle(most=8, flush=True)
        with_handlers += [offset for offset, attempt in hosted.attempts.items() if id(attempt) not in before]
        hosted.now += 2.0
        if hosted.stream.held >= 1_000 and hosted.stream.in_flight > 1:
            order.append(with_handlers.pop(0))
            hosted.finish(order[-1], Outcome(RETRIED, 1.0, "no") if order == [1] else SUCCESS)
    again = order.index(1, 1)
    assert again < 12
    assert 21 in order[again:], "the next of its key"


def test_a_row_that_is_not_due_yet_by_the_databases_clock_keeps_no_payload() -> None:
    hosted = Hosted([""])
    hosted.iterate()
    hosted.finish(1, RETRY)
    hosted.settle()
    hosted.now = 10.0
    assert hosted.stream.due_rows(hosted.now, 1) == [1]
    arrivals.load(hosted.stream, 1, StoredRow(1, False, NOT_IN_FLIGHT, 1, 0.5, ""), hosted.log[0], hosted.now)
    assert hosted.stream.entries[1].message is None
    hosted.now = 10.5
    assert hosted.load() == [1]
    hosted.settle()
    assert hosted.finish(1)


def test_a_final_read_takes_place_however_much_is_in_memory() -> None:
    """Else nothing would pass the messages beyond F, which handlers have."""
    hosted = Hosted([""] * 6)
    heavy(hosted, range(1, 7), 2_000)
    hosted.stream.budget.share = 3_000
    hosted.read(0)
    hosted.settle()
    assert hosted.stream.held >= hosted.stream.budget.half
    hosted.read(4)
    assert hosted.stream.window.final >= 1
    hosted.finish(1)
    for offset in range(2, 7):
        hosted.read(6)
        hosted.settle()
        hosted.finish(offset)
    hosted.read(6)
    hosted.settle()
    assert hosted.marks == (6, 6)


def test_an_ack_that_waits_keeps_no_heavy_payload() -> None:
    hosted = Hosted([""] * 3)
    heavy(hosted, range(2, 3), 100_000)
    hosted.iterate()
    hosted.finish_each(2, 3)
    hosted.settle()
    waiting = hosted.stream.writes.acks
    assert [waiting[offset].attempt.message.payload for offset in (2, 3)] == [None, hosted.log[2].payload]
    hosted.finish(1)
    plan = hosted.planned()
    assert [attempt.offset for attempt, _ in plan.settled] == [1, 2, 3]


def test_a_slow_handler_holds_up_no_scan_for_another_key() -> None:
    """Its message came late, before others of its key that wait: these need not be looked for until it returns."""
    hosted = Hosted([*"aaaabbb", ""])
    late, hosted.log[0] = hosted.log[0], MessageValueFactory(offset=0)
    hosted.read(0)
    hosted.settle(of_a_queue=1)
    hosted.finish(2, RETRY)
    hosted.finish(5, RETRY)
    hosted.settle()
    hosted.now = 10.0
    hosted.load()
    hosted.settle()
    hosted.log[0] = late
    hosted.stream.window.alarm()
    hosted.read()
    hosted.finish(2)
    hosted.read()
    hosted.settle(of_a_queue=1)
    assert 1 in hosted.attempts
    hosted.finish(8)  # this ack waits in memory: it makes the slow one get its row
    hosted.settle()
    hosted.settle(flush=True)
    assert {one.key: (one.low, one.high) for one in hosted.stream.ranges.by_key.values()} == {"a": (2, 4), "b": (5, 7)}
    hosted.read()
    hosted.finish(5)
    hosted.read()
    hosted.iterate()
    assert sorted(hosted.attempts) == [1, 2, 5, 6, 7, 8]
    hosted.finish(1)
    hosted.iterate()
    assert {3, 4} <= hosted.attempts.keys()
