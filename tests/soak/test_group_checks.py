"""The checks of calls, limits, filters and shared partitions find what was planted into a history, and nothing in those
that are sound."""

from __future__ import annotations

from typing import Any

from tests.soak import job_checks, limits, test_job_checks
from tests.soak.calls import SEEN, WAITED
from tests.soak.job_records import Ask
from tests.soak.job_stories import AHEAD, JobHistory
from tests.soak.records import DeadLetter, Fault
from tests.soak.stories import ONE, OTHER, PUBLISHER, Stories
from tests.soak.workload import (
    CROWDED,
    JOB_READERS,
    LEASE_DURATION,
    LEAST_VALUE,
    REQUESTS,
    VISIBILITY_TIMEOUT,
)

LIMITED = next(reader for reader in JOB_READERS if reader.rate is not None)
RATE = LIMITED.rate or 0.0
AT_ONCE = int(1 + RATE * limits.BURST + limits.DISPATCHED)  # may begin in one process


class GroupHistory(JobHistory):
    """A run of which one request is told, "r", whose message is "m"; or what its groups with limits began."""

    def request(self, whom: str = "clerk", value: int = LEAST_VALUE, at: float = 1.0) -> None:
        """A request; that the deputy's filter leaves it out is counted."""
        self.log(REQUESTS, "m", at, {"id": "r", "do": "ok", "for": whom, "value": value})
        if whom == "clerk" or value < LEAST_VALUE:
            self.jobs.filtered[REQUESTS, "deputy"] += 1

    def answered(
        self, at: float, what: str = "reply", value: Any = None, *, of: str = "clerk", attempt: int = 1, **asked: float
    ) -> None:
        """What came of the call that began after one second."""
        if what == "reply" and value is None:
            value = {"id": "r", "group": of, "attempt": attempt}
        ask = Ask("r", PUBLISHER, asked.get("timeout", 3.0), 1.0)
        ask.ended, ask.what, ask.value = at, what, value
        self.jobs.asks.append(ask)

    def answer(self, group: str, at: float, outcome: str = "ok", attempt: int = 1) -> None:
        """An attempt of the request's message."""
        self.handle("m", at, outcome, topic=REQUESTS, group=group, attempt=attempt)

    def rejected(self, at: float) -> None:
        self.answer("clerk", at, "reject")
        self.record.dead.append(DeadLetter(REQUESTS, "clerk", 1, "m", 1, "asked for", at + AHEAD))

    def crowd(self, *begins: float, seconds: float | None = 0.001, by: int = ONE) -> None:
        """As many messages, each begun by the group with limits at its moment."""
        partition = by - ONE
        self.record.acquired.append((0.5, by, CROWDED, LIMITED.group, partition))
        for began in begins:
            id = f"m{len(self.record.transactions)}"
            self.publish(id, topic=CROWDED)
            where: Any = {"topic": CROWDED, "partition": partition, "by": by}
            self.handle(id, began, group=LIMITED.group, seconds=seconds, **where)
            if seconds is None:  # its successor
                self.handle(id, began + 20, group=LIMITED.group, attempt=2, **(where | {"by": OTHER}))
                self.record.acquired.append((began + 10, OTHER, CROWDED, LIMITED.group, partition))


STORIES = Stories(GroupHistory)
planted, sound = STORIES.planted, STORIES.sound


# -- calls ------------------------------------------------------------------------------------------------------------


@sound
def replied(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2)
    history.answered(1.4)


@sound
def replied_by_the_attempt_after_one_that_failed(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2, "fail")
    history.answer("clerk", 1.6, attempt=2)
    history.answered(1.8, attempt=2)


@sound
def replied_by_the_group_that_was_faster(history: GroupHistory) -> None:
    history.request("both")
    history.answer("deputy", 1.2)
    history.answer("clerk", 1.2)
    history.answered(1.4, of="deputy")


@sound
def a_dead_letter_raises(history: GroupHistory) -> None:
    history.request()
    history.rejected(1.2)
    history.answered(1.5, "failed", "clerk")


@sound
def replied_although_the_other_group_rejects(history: GroupHistory) -> None:
    history.request("both")
    history.rejected(1.2)
    history.answer("deputy", 2)
    history.answered(2.2, of="deputy")


@sound
def handled_after_the_timeout(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 5)
    history.answered(4.1, "timeout")


@sound
def replied_and_not_seen_by_a_caller_that_was_stopped(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2)
    history.record.faults.append(Fault("stop-publisher", 1.3, 20, frozenset([PUBLISHER])))
    history.answered(20.1, "timeout")


@sound
def an_error_while_the_server_was_away(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 9)
    history.fault("kill-server", 1.1, 2)
    history.answered(3.2, "error", "OperationalError()")


@sound
def a_call_was_cut_short_with_its_process(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2)
    history.jobs.asks.append(Ask("r", PUBLISHER, 3.0, 1.0))
    history.jobs.sockets.append(0)


@planted("calls wrong")
def a_call_never_returned(history: GroupHistory) -> None:
    a_call_was_cut_short_with_its_process(history)
    history.record.left.add(PUBLISHER)


@planted("calls wrong")
def the_reply_to_another_request(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2)
    history.answered(1.4, value={"id": "r2", "group": "clerk", "attempt": 1})


@planted("calls wrong")
def the_second_reply_of_a_handler(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2)
    history.answered(1.4, value="a second reply")


@planted("calls wrong")
def the_reply_of_an_attempt_that_failed(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2, "fail")
    history.answer("clerk", 1.6, attempt=2)
    history.answered(1.8, attempt=1)


@planted("calls wrong")
def the_reply_of_a_former_owner(history: GroupHistory) -> None:
    history.request()
    history.fault("stop-consumer", 1.1, 10, to=ONE)
    history.handle("m", 1.2, topic=REQUESTS, group="clerk", confirmed=False, seconds=10)
    history.acquire(OTHER, 10, REQUESTS, "clerk")
    history.handle("m", 10.5, topic=REQUESTS, group="clerk", attempt=2, by=OTHER)
    history.answered(11.3, attempt=1, timeout=20)


@planted("calls wrong")
def the_reply_that_was_not_the_first(history: GroupHistory) -> None:
    history.request("both")
    history.answer("clerk", 1.2)
    history.answer("deputy", 2)
    history.answered(2.2, of="deputy")


@planted("calls wrong")
def failed_although_it_is_no_dead_letter(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2)
    history.answered(1.4, "failed", "clerk")


@planted("calls wrong")
def failed_although_the_other_group_had_replied(history: GroupHistory) -> None:
    history.request("both")
    history.rejected(1.2)
    history.answer("deputy", 2)
    history.answered(2.2 + SEEN, "failed", "clerk", timeout=10)


@planted("calls wrong")
def timed_out_although_a_reply_was_there(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 1.2)
    history.answered(1.4 + SEEN, "timeout")


@planted("calls wrong")
def timed_out_too_early(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 5)
    history.answered(3.8, "timeout")


@planted("calls wrong")
def an_error_without_a_fault(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 5)
    history.fault("kill-server", 40)
    history.answered(3.2, "error", "OperationalError()")


@planted("calls wrong")
def waited_for_longer_than_it_may(history: GroupHistory) -> None:
    history.request()
    history.answer("clerk", 20)
    history.answered(1 + 3 + WAITED + 0.1, "timeout")


@planted("calls wrong")
def a_socket_was_left_open(history: GroupHistory) -> None:
    history.jobs.sockets.append(1)


# -- limits -----------------------------------------------------------------------------------------------------------


@sound
def as_many_as_may_begin(history: GroupHistory) -> None:
    history.crowd(*(2 + n / 1000 for n in range(AT_ONCE)))


@planted("limits exceeded")
def more_than_may_begin(history: GroupHistory) -> None:
    history.crowd(*(2 + n / 1000 for n in range(AT_ONCE + 1)))


@sound
def what_two_processes_had_dispatched(history: GroupHistory) -> None:
    history.crowd(*(2 + n / 1000 for n in range(AT_ONCE)))
    history.crowd(*(2.5 + n / 1000 for n in range(limits.DISPATCHED)), by=OTHER)


@planted("limits exceeded")
def more_than_may_begin_in_two_processes(history: GroupHistory) -> None:
    history.crowd(*(2 + n / 1000 for n in range(AT_ONCE)))
    history.crowd(*(2.1 + n / 1000 for n in range(AT_ONCE)), by=OTHER)


@sound
def the_rate_for_half_a_minute(history: GroupHistory) -> None:
    history.crowd(*(2 + n / RATE for n in range(300)))


@planted("limits exceeded")
def a_fifth_more_than_the_rate_for_half_a_minute(history: GroupHistory) -> None:
    history.crowd(*(2 + n / (1.2 * RATE) for n in range(300)))


@sound
def as_many_handlers_as_may_run(history: GroupHistory) -> None:
    history.crowd(2, 4, 6, seconds=1.9)
    history.crowd(3, 5, seconds=1.9, by=OTHER)


@planted("limits exceeded")
def three_handlers_in_two_processes(history: GroupHistory) -> None:
    history.crowd(2, 2.1, seconds=1)
    history.crowd(2.2, seconds=1, by=OTHER)


@sound
def a_third_handler_beside_one_that_is_over_its_time(history: GroupHistory) -> None:
    history.crowd(2, 6.1, 6.1, seconds=0.5)
    history.crowd(2.2, seconds=VISIBILITY_TIMEOUT + 1, by=OTHER)


@sound
def a_third_handler_beside_those_of_a_process_that_was_killed(history: GroupHistory) -> None:
    history.fault("kill-consumer", 2.05, to=ONE)
    history.crowd(2, seconds=None)
    history.crowd(2.1, 2.2, seconds=0.5, by=OTHER)


@sound
def a_third_handler_beside_one_of_a_process_that_was_stopped_for_a_lease(history: GroupHistory) -> None:
    history.fault("stop-consumer", 2, LEASE_DURATION + 2, to=OTHER)
    history.crowd(12.1, 12.2, seconds=0.5)
    history.crowd(12.05, seconds=1, by=OTHER)


@planted("limits exceeded")
def a_third_handler_beside_one_of_a_process_that_was_stopped_for_less(history: GroupHistory) -> None:
    history.fault("stop-consumer", 2, 3, to=OTHER)
    history.crowd(5.2, 5.3, seconds=0.5)
    history.crowd(5.1, seconds=1, by=OTHER)


# -- filters ----------------------------------------------------------------------------------------------------------


@sound
def left_out_and_counted(history: GroupHistory) -> None:
    history.request("clerk")
    history.answer("clerk", 1.2)


@sound
def handled_because_it_matches(history: GroupHistory) -> None:
    history.request("deputy")
    history.answer("clerk", 1.2)
    history.answer("deputy", 1.2)


@sound
def not_counted_by_a_process_that_was_killed(history: GroupHistory) -> None:
    history.request("clerk")
    history.answer("clerk", 1.2)
    history.fault("kill-consumer", 1.1, to=OTHER)
    history.jobs.filtered.clear()


@planted("filters wrong")
def handled_although_its_header_does_not_match(history: GroupHistory) -> None:
    left_out_and_counted(history)
    history.answer("deputy", 1.2)


@planted("filters wrong")
def handled_although_its_payload_does_not_match(history: GroupHistory) -> None:
    history.request("deputy", LEAST_VALUE - 1)
    history.answer("clerk", 1.2)
    history.answer("deputy", 1.2)


@planted("filters wrong")
def left_out_and_not_counted(history: GroupHistory) -> None:
    history.request("clerk")
    history.answer("clerk", 1.2)
    history.fault("kill-consumer", 40, to=OTHER)
    history.jobs.filtered.clear()


@planted("filters wrong")
def counted_twice(history: GroupHistory) -> None:
    left_out_and_counted(history)
    history.jobs.filtered[REQUESTS, "deputy"] = 2


@planted("lost")
def left_out_although_it_matches(history: GroupHistory) -> None:
    history.request("both")
    history.answer("clerk", 1.2)


# -- tests ------------------------------------------------------------------------------------------------------------


test_what_was_planted_is_found_and_nothing_else = STORIES.test()


def test_every_kind_of_violation_of_jobs_has_been_planted() -> None:
    assert STORIES.kinds | test_job_checks.STORIES.kinds >= set(job_checks.VIOLATIONS)


def test_the_figures_say_how_much_was_checked() -> None:
    history = GroupHistory()
    replied(history)
    history.crowd(2, 2.1, seconds=1)
    history.crowd(2.5, seconds=0.1, by=OTHER)
    figures = job_checks.figures(history.record)
    assert figures["calls"] == {"reply": 1}
    assert figures["begun within limits"] == "3 in 2 processes, 3 at once"
    assert (figures["messages left out by filters"], figures["of them counted"]) == (1, 1)
