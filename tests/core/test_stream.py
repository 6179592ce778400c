"""A stream's decisions: the RFC's examples, lanes, attempts, and what keeps a stream from standing still."""

import pytest

from sqlqueue.core import stream as stream_module
from sqlqueue.core.outcomes import COMMITTED, DEAD, POSTPONED, RETRIED, SUCCESS, UNSTARTED, Outcome
from sqlqueue.core.plan import ALONE, NOT_IN_FLIGHT, TOGETHER, Message, Plan, RowWrite, StoredRow
from sqlqueue.core.stream import Address, Manners, Stream
from tests.core.test_log_model import check_memory

RETRY = Outcome(RETRIED, 10.0, "no")


def message(offset: int, key: str = "", group: str = "") -> Message:
    return Message(offset, key, f"m{offset}", "1", None, 0, group)


class Hosted:
    """A stream whose log is given, and whose plans all succeed."""

    def __init__(
        self, keys: str | list[str] = "", *, position: int = 0, rows: list[StoredRow] | None = None, **manners: object
    ) -> None:
        self.stream = Stream(
            Address("g", "t", 0),
            Manners(**manners),
            id=1,
            token=1,
            position=position,
            watermark=position,
            claimed=position,
            rows=rows or [],
        )
        self.now = 0.0
        self.log = [message(offset, key) for offset, key in enumerate(keys, 1)]
        self.horizon = len(self.log)
        self.hands: dict[int, object] = {}

    def read(self, horizon: int | None = None) -> None:
        horizon = self.horizon if horizon is None else horizon
        start, limit = self.stream.next_read(horizon)
        if limit <= 0:
            return
        between = self.stream.window.known(self.stream.window.final, start)
        self.stream.take_in([m for m in self.log if m.offset > start][:limit], start, limit, horizon, between)

    def settle(self, most: int = 100, flush: bool = False) -> Plan | None:
        runs = self.stream.choose(most)
        self.hands.update((hand.offset, hand) for run in runs for hand in run.hands)
        plan = self.stream.plan(self.now, 0.0 if flush else 1.0, runs)
        check_memory(self.stream)
        return plan

    def load(self) -> list[int]:
        """Load what is due; every row is as it was written last, every message is there."""
        offsets = self.stream.due_rows(self.now, self.stream.manners.batch_size)
        for offset in offsets:
            count = self.stream._entries[offset].count
            row = StoredRow(offset, False, NOT_IN_FLIGHT, count, 0.0, self.log[offset - 1].key)
            self.stream.load(offset, row, self.log[offset - 1], self.now)
        return offsets

    def finish(self, offset: int, outcome: Outcome = SUCCESS) -> bool:
        return self.stream.finish(self.hands[offset], outcome, self.now)

    @property
    def marks(self) -> tuple[int, int]:
        return self.stream.position, self.stream.watermark


def test_a_nacked_message_holds_the_watermark_until_it_is_acked() -> None:
    hosted = Hosted([""] * 5)
    hosted.read()
    hosted.settle()
    for offset in (1, 2, 4, 5):
        hosted.finish(offset)
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
    hosted.read()
    hosted.settle()
    for offset in (3, 1, 2):
        hosted.finish(offset)
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
    for offset in (1, 3):
        hosted.finish(offset)
    plan = hosted.settle()
    assert plan is not None
    assert [hand.offset for hand in plan.settled] == [1], "3 is above what is final, and has no row yet"
    assert hosted.settle() is None
    plan = hosted.settle(flush=True)
    assert plan is not None
    assert ([hand.offset for hand in plan.settled], [row.offset for row in plan.rows]) == ([3], [3])
    hosted.finish(2)
    hosted.read()
    plan = hosted.settle()
    assert plan is not None
    assert (plan.position, [hand.offset for hand in plan.settled]) == (3, [2])


def test_a_batch_in_which_everything_succeeds_writes_one_row_and_no_other() -> None:
    hosted = Hosted([""] * 50)
    hosted.read()
    hosted.settle()
    for offset in range(1, 51):
        hosted.finish(offset)
    plan = hosted.settle()
    assert plan is not None
    assert (plan.position, plan.watermark, plan.rows, plan.deletes, plan.dead) == (50, 50, [], [], [])


def test_the_claim_is_written_with_the_plan_that_precedes_the_handlers() -> None:
    hosted = Hosted([""] * 5)
    hosted.read()
    plan = hosted.settle(most=3)
    assert plan is not None
    assert plan.claimed == 3
    assert [hand.attempt for run in plan.runs for hand in run.hands] == [1, 1, 1]


def test_a_failed_message_holds_its_own_key_only() -> None:
    hosted = Hosted("abab")
    hosted.read()
    hosted.settle()
    assert sorted(hosted.hands) == [1, 2, 3, 4]
    hosted.finish(3, UNSTARTED)
    hosted.finish(1, RETRY)
    hosted.finish(2)
    hosted.finish(4)
    hosted.hands.clear()
    hosted.settle()
    assert hosted.hands == {}
    assert hosted.marks == (4, 0)  # 3 was parked, so that the position could pass it


def test_a_failed_message_holds_its_partition_if_that_is_the_order() -> None:
    hosted = Hosted("abab", ordering="partition")
    hosted.read()
    hosted.settle()
    for offset in (4, 3, 2):
        hosted.finish(offset, UNSTARTED)
    hosted.finish(1, RETRY)
    hosted.hands.clear()
    hosted.settle()
    assert hosted.hands == {}
    assert hosted.marks == (1, 0)


def test_a_failed_message_holds_nothing_without_an_order() -> None:
    hosted = Hosted("aaaa", ordering="none")
    hosted.read()
    hosted.settle(most=2)
    hosted.finish(1, RETRY)
    hosted.settle()
    assert sorted(hosted.hands) == [1, 2, 3, 4]


def test_a_postponed_or_handed_back_message_is_not_charged() -> None:
    hosted = Hosted([""])
    hosted.read()
    for attempt, outcome in ((1, UNSTARTED), (1, Outcome(POSTPONED, 1.0)), (1, RETRY), (2, UNSTARTED), (2, RETRY)):
        hosted.settle()
        assert hosted.hands[1].attempt == attempt
        hosted.finish(1, outcome)
        hosted.settle(most=0)
        hosted.now += 20
        hosted.load()
    hosted.settle()
    assert hosted.hands[1].attempt == 3


def test_a_dead_letter_counts_as_acked_in_the_plan_that_copies_it() -> None:
    hosted = Hosted([""] * 2)
    hosted.read()
    hosted.settle()
    hosted.finish(2, Outcome(DEAD, error="no"))
    plan = hosted.settle()
    assert plan is not None
    assert [letter.message.offset for letter in plan.dead] == [2]
    assert plan.rows == [RowWrite(2, True, NOT_IN_FLIGHT, 1, 0.0, "no")]  # 1 is unsettled: the position stays


def test_a_suspect_is_handed_out_alone_and_dead_lettered_only_if_it_was_alone() -> None:
    rows = [StoredRow(1, False, TOGETHER, 3, 0.0, ""), StoredRow(2, False, ALONE, 3, 0.0, "")]
    hosted = Hosted([""] * 2, position=2, rows=rows, max_attempts=3)
    stream = hosted.stream
    assert stream.choose(10) == []
    assert stream.suspect() == 1
    stream.load(1, rows[0], hosted.log[0], 0.0)
    (run,) = stream.choose_alone(1, 0.0)
    assert (run.hands[0].attempt, run.hands[0].alone) == (4, True)
    plan = stream.plan(0.0, 1.0, [run])
    assert plan is not None
    assert plan.rows[0].in_flight == ALONE
    stream.finish(run.hands[0], SUCCESS, 0.0)
    assert stream.suspect() == 2
    stream.load(2, rows[1], hosted.log[1], 0.0)
    assert stream.choose_alone(2, 0.0) == []
    plan = stream.plan(0.0, 1.0, [])
    assert plan is not None
    assert [letter.message.offset for letter in plan.dead] == [2]


def test_an_outcome_that_comes_after_an_overrun_changes_nothing() -> None:
    hosted = Hosted([""])
    hosted.read()
    hosted.settle()
    hand = hosted.hands[1]
    assert hosted.finish(1, RETRY)
    assert not hosted.stream.finish(hand, SUCCESS, 0.0)
    hosted.settle()
    assert hosted.marks == (1, 0)


def test_the_position_does_not_pass_what_is_not_final() -> None:
    hosted = Hosted([""] * 4)
    hosted.read(horizon=2)
    hosted.settle()
    for offset in range(1, 5):
        hosted.finish(offset)
    hosted.settle()
    assert hosted.marks == (2, 2)
    hosted.now = 5.0
    plan = hosted.settle(flush=True)
    assert plan is not None
    assert [(row.offset, row.acked) for row in plan.rows] == [(3, True), (4, True)]
    hosted.stream.window.watched(2, 4, 2, True)
    plan = hosted.settle()
    assert plan is not None
    assert (plan.position, plan.deletes) == (4, [3, 4])


def test_messages_for_another_group_are_passed() -> None:
    hosted = Hosted()
    hosted.stream.take_in([message(1, "k", "other"), message(2, "k", "g")], 0, 10, 2)
    hosted.settle()
    assert sorted(hosted.hands) == [2]
    hosted.finish(2)
    hosted.settle()
    assert hosted.marks == (2, 2)


def test_what_was_parked_behind_a_failed_batch_comes_together_and_what_failed_one_by_one() -> None:
    hosted = Hosted("abababab", batch=True, batch_size=4)
    hosted.read()
    sizes = []
    for turn in range(8):
        plan = hosted.settle()
        for run in plan.runs if plan else []:
            sizes.append([hand.offset for hand in run.hands])
            for hand in run.hands:
                hosted.stream.finish(hand, SUCCESS if turn else RETRY, hosted.now)
        hosted.now += 11.0
        hosted.load()
    assert sizes == [[1, 2, 3, 4], [1], [3], [2], [4], [5, 6, 7, 8]]


def test_what_was_parked_comes_together_for_the_next_owner_too() -> None:
    rows = [StoredRow(1, False, NOT_IN_FLIGHT, 1, 0.0, "a")]
    rows += [StoredRow(offset, False, NOT_IN_FLIGHT, 0, 0.0, "a") for offset in (2, 3, 4)]
    hosted = Hosted("aaaa", position=4, rows=rows, batch=True, batch_size=10)
    sizes = []
    for _ in range(3):
        hosted.load()
        plan = hosted.settle()
        for run in plan.runs if plan else []:
            sizes.append([hand.offset for hand in run.hands])
            for hand in run.hands:
                hosted.finish(hand.offset)
    assert sizes == [[1], [2, 3, 4]]


@pytest.mark.parametrize("outcome", [Outcome(POSTPONED, 1.0), UNSTARTED])
def test_a_batch_that_was_postponed_or_could_not_start_comes_together_again(outcome: Outcome) -> None:
    rows = [StoredRow(offset, False, NOT_IN_FLIGHT, 0, 0.0, "a") for offset in (1, 2, 3)]
    hosted = Hosted("aaa", position=3, rows=rows, batch=True, batch_size=10)
    sizes = []
    for _ in range(4):
        hosted.load()
        plan = hosted.settle()
        for run in plan.runs if plan else []:
            sizes.append(len(run.hands))
            for hand in run.hands:
                hosted.finish(hand.offset, SUCCESS if len(sizes) > 1 else outcome)
        hosted.now += 100.0
    assert sizes == [3, 3]


def test_keys_whose_first_messages_failed_again_do_not_stand_still_for_those_loaded_behind_them() -> None:
    keys = "ab" * 20
    rows = [StoredRow(offset, False, NOT_IN_FLIGHT, 0, 0.0, key) for offset, key in enumerate(keys, 1)]
    hosted = Hosted(keys, position=len(keys), rows=rows, batch_size=5)
    done: set[int] = set()
    for _ in range(200):
        hosted.load()
        runs = hosted.stream.choose(16, 2)
        hosted.stream.plan(hosted.now, 1.0, runs)
        for run in runs:
            while (hand := run.start_next()) is not None:
                if hand.offset % 3 == 1 and hand.attempt == 1:
                    for later in run.stop():
                        hosted.stream.finish(later, UNSTARTED, hosted.now)
                    hosted.stream.finish(hand, RETRY, hosted.now)
                else:
                    hosted.stream.finish(hand, SUCCESS, hosted.now)
                    done.add(hand.offset)
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
    assert 31 in hosted.hands


def test_purged_messages_leave_no_trace_in_the_counters() -> None:
    hosted = Hosted("aaa")
    hosted.read()
    hosted.settle(most=1)
    hosted.finish(1, RETRY)
    hosted.settle()
    assert hosted.stream._parked == 2
    hosted.now = 10.0
    for offset in hosted.stream.due_rows(hosted.now, 10):
        hosted.stream.load(offset, None, None, hosted.now)
    hosted.settle()
    check_memory(hosted.stream)
    assert hosted.stream._parked == 0


def test_due_rows_are_loaded_as_far_as_they_can_be_handed_out() -> None:
    rows = [StoredRow(offset, False, NOT_IN_FLIGHT, 1, 0.0, "") for offset in range(1, 501)]
    hosted = Hosted([""] * 500, position=500, rows=rows, batch_size=10)
    for _ in range(50):
        hosted.load()
    assert hosted.stream.ready <= 40
    for _ in range(200):
        hosted.settle(most=10)
        for offset in [offset for offset, hand in hosted.hands.items() if hand.outcome is None]:
            hosted.finish(offset)
        hosted.load()
    hosted.settle()
    assert hosted.marks == (500, 500)


def test_what_is_settled_is_forgotten() -> None:
    hosted = Hosted([f"k{offset}" for offset in range(1, 201)], batch_size=200)
    hosted.read()
    hosted.settle(most=200)
    for offset in range(1, 201):
        hosted.finish(offset)
    hosted.settle()
    hosted.settle()
    stream = hosted.stream
    assert not any((stream._entries, stream._lanes, stream._turns, stream._waiting, stream._unsettled_rows))


def test_a_release_hands_back_uncharged_and_keeps_the_acks() -> None:
    hosted = Hosted([""] * 3)
    hosted.read()
    hosted.settle()
    hosted.finish(2)
    plan = hosted.stream.release_plan(0.0)
    assert plan.release
    assert plan.position == 0
    assert [(row.offset, row.acked) for row in plan.rows] == [(2, True)]
    assert hosted.stream.lost


@pytest.mark.parametrize("parked", [3])
def test_parked_rows_are_bounded(parked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "PARKED_LIMIT", parked)
    hosted = Hosted("a" * 10)
    hosted.read()
    hosted.settle(most=1)
    hosted.finish(1, RETRY)
    hosted.settle()
    assert hosted.marks == (1 + parked, 0)


def test_an_atomic_batch_that_follows_the_position_moves_it() -> None:
    hosted = Hosted([""] * 4, batch=True, atomic=True, batch_size=3)
    hosted.read(horizon=4)
    plan = hosted.settle()
    assert plan is not None
    (run,) = plan.runs
    assert ([hand.offset for hand in run.hands], run.position, run.moves_to) == ([1, 2, 3], 0, 3)
    hosted.stream.committed_to(3)
    for hand in run.hands:
        assert hosted.stream.finish(hand, COMMITTED, 0.0)
    assert hosted.stream.position == 3
    check_memory(hosted.stream)


def test_a_failed_batch_comes_back_one_by_one() -> None:
    hosted = Hosted([""] * 5, batch=True, batch_size=3)
    hosted.read()
    hosted.settle()
    for offset in (1, 2, 3):
        hosted.finish(offset, RETRY)
    hosted.now = 10.0
    sizes = []
    for _ in range(4):
        hosted.load()
        plan = hosted.settle()
        assert plan is not None
        sizes += [len(run.hands) for run in plan.runs]
        for offset in [offset for offset, hand in hosted.hands.items() if hand.outcome is None]:
            hosted.finish(offset)
    assert sorted(sizes) == [1, 1, 1, 2]


def test_those_that_waited_behind_a_failed_one_come_together_again() -> None:
    hosted = Hosted(["a"] * 12, batch=True, batch_size=10)
    everything, hosted.log = hosted.log, hosted.log[:1]
    hosted.read(horizon=1)
    hosted.settle()
    hosted.finish(1, RETRY)
    hosted.log = everything
    for _ in range(3):
        hosted.read()
        hosted.settle()
    assert hosted.marks == (12, 0), "2 to 12 are parked"
    batches = []
    hosted.now = 10.0
    for _ in range(6):
        hosted.load()
        hosted.settle()
        batch = [offset for offset in hosted.hands if hosted.stream._entries[offset].hand is hosted.hands[offset]]
        batches.append(batch)
        for offset in batch:
            hosted.finish(offset)
            del hosted.hands[offset]
    assert [batch for batch in batches if batch] == [[1], list(range(2, 12)), [12]]
    assert hosted.marks == (12, 12)


def test_a_batch_waits_for_the_horizon_only_as_long_as_it_has_to() -> None:
    """What stood above the horizon when an atomic batch was chosen is chosen when the horizon has risen."""
    hosted = Hosted(["", "a"], batch=True, atomic=True)
    hosted.log[0] = message(1, group="another")
    hosted.read(horizon=1)
    assert hosted.settle().position == 1
    assert not hosted.hands  # 1 is for another group, and 2 was above the horizon when a batch was chosen
    hosted.stream.window.watched(1, 2, 1, True)
    assert hosted.stream.has_turns
    hosted.settle()
    assert list(hosted.hands) == [2]
