"""The checker finds each kind of violation in a history in which it was planted, and nothing in those that are sound.

The histories are a few lines each. What is told of time is in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sqlqueue.core.keys import partition_of
from tests.soak import epochs, job_checks, starving
from tests.soak.checker import AGAIN_AND_AGAIN, KEPT, LATE_BEGINS, VIOLATIONS
from tests.soak.explanations import LATE, THAW
from tests.soak.progress import BOUND, RECOVERY
from tests.soak.records import Failover
from tests.soak.stories import (
    ATOMIC,
    MINUTE,
    ONE,
    OTHER,
    SETTLE,
    SIMPLE,
    STRICT,
    THIRD,
    History,
    Stories,
    found_in,
    groups_of,
)
from tests.soak.workload import (
    BLOCKED,
    DEAD_LETTERS,
    DEAD_LETTERS_OF,
    HUNG_AFTER,
    LEASE_DURATION,
    MAX_ATTEMPTS,
    PARTITIONS,
    PHASE_TOPICS,
    READERS,
    TOO_LONG,
    UNSERVED,
    VISIBILITY_TIMEOUT,
    WAIT,
    WINDOW,
)

OTHERS = {*job_checks.VIOLATIONS, *epochs.VIOLATIONS, *starving.VIOLATIONS}  # tests of their own plant these
STORIES = Stories(History)
planted, sound = STORIES.planted, STORIES.sound


# -- lost, never published, published twice, torn ---------------------------------------------------------------------


@planted("lost")
def never_handled(history: History) -> None:
    history.publish("m")


@planted("lost")
def handled_for_one_group_only(history: History) -> None:
    history.publish("m", topic="orders")
    history.handle("m", 2, topic="orders", group="ship")


@planted("lost")
def given_up_after_a_failure(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, "fail")


@planted("lost")
def in_doubt_and_seen_by_one_group_only(history: History) -> None:
    history.publish("m", topic="orders", told=None)
    history.handle("m", 2, topic="orders", group="ship")


@sound
def not_delivered_yet(history: History) -> None:
    history.publish("m")
    history.publish("n", topic=ATOMIC)
    history.handle("n", 2, topic=ATOMIC, confirmed=False)
    history.leave("m")
    history.leave("n", topic=ATOMIC)


@planted("lost")
def passed_while_others_are_not_delivered_yet(history: History) -> None:
    history.publish("m", "n")
    history.leave("n")


@sound
def everything_once(history: History) -> None:
    for number, topic in enumerate(sorted({reader.topic for reader in READERS})):
        history.publish(f"a{number}", f"b{number}", topic=topic, at=1 + number)
        history.handle(f"a{number}", 2 + number, topic=topic)
        history.handle(f"b{number}", 2.2 + number, topic=topic)


@planted("never published")
def handled_although_it_was_not_published(history: History) -> None:
    history.handle("m", 2)


@planted("never published")
def handled_although_it_was_taken_back(history: History) -> None:
    history.publish("m", told=None, back=True)
    history.handle("m", 2)


@planted("never published")
def dead_lettered_although_it_was_taken_back(history: History) -> None:
    history.publish("m", "n", told=None, back=True)
    history.handle("m", 2, "reject", confirmed=False)
    history.dead_letter("m")


@sound
def taken_back_and_never_seen(history: History) -> None:
    history.publish("m", told=None, back=True)


@planted("published twice", "unexplained duplicates", "delivered after the ack")
def one_id_at_two_offsets(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, offset=10)
    history.handle("m", 3, offset=11)


@planted("published twice")
def one_id_at_two_offsets_for_two_groups(history: History) -> None:
    history.publish("m", topic="bulk")
    history.handle("m", 2, topic="bulk", group="load", offset=10)
    history.handle("m", 3, topic="bulk", group="tally", offset=11)


@sound
def published_again_until_an_answer_came(history: History) -> None:
    history.publish("m", told=9)  # it was there, and handled, before the publisher heard of it
    history.handle("m", 2)


@sound
def published_again_when_the_first_was_no_longer_kept(history: History) -> None:
    history.publish("m", topic="bulk", told=KEPT + 1)
    history.handle("m", 2, topic="bulk", group="load", offset=10)
    history.handle("m", 3, topic="bulk", group="tally", offset=11)


@planted("torn")
def half_of_a_transaction(history: History) -> None:
    history.publish("m", "n", told=None)
    history.handle("m", 2)


@sound
def a_doubtful_transaction_that_is_not_there(history: History) -> None:
    history.publish("m", "n", told=None)


@sound
def a_doubtful_transaction_of_which_one_is_dead(history: History) -> None:
    history.publish("m", "n", told=None)
    history.handle("m", 2, "reject")
    history.dead_letter("m")
    history.handle("n", 3)


# -- after the ack, duplicates ----------------------------------------------------------------------------------------


@planted("delivered after the ack")
def again_after_a_confirmed_ack_whatever_was_done(history: History) -> None:
    history.publish("m")
    history.handle("m", 2)
    history.fault("kill-consumer", 2.5, to=ONE)
    history.acquire(OTHER, 3)
    history.handle("m", 4, by=OTHER, attempt=2)


@planted("delivered after the ack", "dead-lettered without reason")
def again_after_a_confirmed_dead_letter(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, "reject")
    history.dead_letter("m")
    history.handle("m", 3, attempt=2)


def redelivered(history: History, kind: str, fault_at: float, *, seconds: float = 0.0, to: int | None = ONE) -> None:
    """Handled at 20 and never settled; a minute later by another process, which has acquired the partition."""
    history.publish("m")
    history.handle("m", 20, confirmed=False)
    history.fault(kind, fault_at, seconds, to)
    history.acquire(OTHER, MINUTE)
    history.handle("m", MINUTE + 1, by=OTHER, attempt=2)


@sound
def killed_before_the_settle(history: History) -> None:
    redelivered(history, "kill-consumer", 20.4)


@sound
def the_server_killed_before_the_settle(history: History) -> None:
    redelivered(history, "kill-server", 20.4, seconds=2, to=None)


@sound
def stopped_before_it_began_and_a_lease_that_ends_later(history: History) -> None:
    redelivered(history, "silence-consumers", 10, seconds=3, to=None)


@planted("unexplained duplicates")
def again_without_any_fault(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, confirmed=False)
    history.acquire(OTHER, MINUTE)
    history.handle("m", MINUTE + 1, by=OTHER)
    history.fault("leave", 20, to=ONE)  # charges nothing, and loses nothing


@planted("unexplained duplicates", "attempts wrong")
def again_with_the_same_attempt(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, confirmed=False)
    history.acquire(OTHER, MINUTE)
    history.handle("m", MINUTE + 1, by=OTHER)


def an_atomic_one_again_with_the_same_attempt(history: History, kind: str, outcome: str = "ok") -> None:
    """Handled at 20, when something is done to its process; a minute later another one handles it again."""
    history.publish("m", topic="ledger")
    history.handle("m", 20, outcome, topic="ledger", group="book", confirmed=False)
    history.fault(kind, 20.1, 3, to=ONE)
    history.acquire(OTHER, MINUTE, topic="ledger", group="book")
    history.handle("m", MINUTE + 1, topic="ledger", group="book", by=OTHER)


@sound
def rolled_back_by_the_engines_own_error(history: History) -> None:
    an_atomic_one_again_with_the_same_attempt(history, "silence-consumers")


@planted("attempts wrong")
def rolled_back_by_the_handlers_error(history: History) -> None:
    an_atomic_one_again_with_the_same_attempt(history, "silence-consumers", "fail")


@planted("attempts wrong")
def rolled_back_with_its_process(history: History) -> None:
    an_atomic_one_again_with_the_same_attempt(history, "kill-consumer")


def left_after_a_fault_held_up_its_commit(history: History, seconds: float) -> None:
    """Handled at 20; its process is told to leave at 40, and another one handles it with the same attempt."""
    history.publish("m")
    history.handle("m", 20, confirmed=False)
    history.fault("silence-consumers", 21, seconds, to=None)
    history.fault("leave", 40, to=ONE)
    history.acquire(OTHER, MINUTE)
    history.handle("m", MINUTE + 1, by=OTHER)


@sound
def released_while_a_fault_held_up_its_commit(history: History) -> None:
    left_after_a_fault_held_up_its_commit(history, seconds=20)


@planted("attempts wrong")
def released_long_after_a_fault_that_held_up_its_commit(history: History) -> None:
    left_after_a_fault_held_up_its_commit(history, seconds=2)


def divided(history: History, *calls: tuple[str, str], group: str = "load") -> None:
    """Messages of a key in batches, and the calls of the handler: which of them it had, and how it ended."""
    published = sorted({id for ids, _ in calls for id in ids})
    history.publish(*published, topic="bulk")
    for number, (ids, outcome) in enumerate(calls):
        for id in ids:
            last = not any(id in later for later, _ in calls[number + 1 :])
            history.handle(id, 20 + number, outcome, topic="bulk", group=group, confirmed=last)
    for other in groups_of("bulk"):
        for id in published if other != group else ():
            history.handle(id, 20, topic="bulk", group=other)


@sound
def a_batch_that_failed_is_divided(history: History) -> None:
    divided(history, ("mn", "fail"), ("m", "ok"), ("n", "ok"))


@sound
def a_key_that_waited_until_its_batch_was_divided_comes_in_a_later_one_of_the_same_size(history: History) -> None:
    divided(history, ("mn", "fail"), ("m", "fail"), ("no", "ok"))
    history.handle("m", 21.5, topic="bulk", group="load", attempt=2)


def divided_and_then_moved(history: History) -> None:
    divided(history, ("mno", "fail"), ("m", "fail"))
    history.acquire(OTHER, 30, topic="bulk", group="load")
    history.handle("m", 31, topic="bulk", group="load", by=OTHER, attempt=2)
    for id in "no":
        history.handle(id, 32, topic="bulk", group="load", by=OTHER)


@sound
def a_key_that_waited_until_its_batch_was_divided_comes_in_a_batch_of_the_process_to_which_it_was_released(
    history: History,
) -> None:
    divided_and_then_moved(history)
    history.release(ONE, 29, topic="bulk", group="load")


def stored(history: History, id: str, at: float, outcome: str) -> None:
    """Of all that a divided batch has come to, this alone was stored before its process was killed."""
    (offset,) = {one.offset for one in history.record.handlings if one.id == id}
    of_group = [each for each in history.record.settled if each[3] != "load"]
    history.record.settled[:] = [*of_group, (at, ONE, "bulk", "load", offset, 1, outcome)]
    history.fault("kill-consumer", 25, to=ONE)


@sound
def it_comes_in_a_batch_of_another_process_if_the_killed_one_had_stored_that_it_waits(history: History) -> None:
    divided_and_then_moved(history)
    stored(history, "m", 22, "retried")


@sound
def what_was_not_tried_alone_and_postponed_comes_in_a_batch_of_another_process(history: History) -> None:
    divided_and_then_moved(history)
    stored(history, "n", 22, "postponed")


@planted("attempts wrong")
def a_divided_batch_goes_on_in_another_process_that_has_taken_the_partition(history: History) -> None:
    divided_and_then_moved(history)
    history.fault("kill-consumer", 25, to=ONE)


@planted("attempts wrong")
def a_divided_batch_goes_on_in_another_process_although_only_a_later_one_was_stored(history: History) -> None:
    divided_and_then_moved(history)
    stored(history, "o", 22, "postponed")


@planted("attempts wrong")
def a_batch_that_failed_again_as_a_whole(history: History) -> None:
    divided(history, ("mn", "fail"), ("mn", "ok"))


@planted("attempts wrong")
def a_batch_that_failed_again_as_a_whole_and_with_another_message(history: History) -> None:
    divided(history, ("mn", "fail"), ("mno", "ok"))


@planted("attempts wrong")
def a_batch_that_failed_again_as_a_whole_after_a_failover(history: History) -> None:
    history.fault("fail-over", 18, 1)
    history.record.failovers.append(Failover(18, 19, frozenset(), frozenset()))
    divided(history, ("mn", "fail"), ("mn", "ok"))


def held_up(history: History, by: int = ONE, group: str = "notify", seconds: float = TOO_LONG) -> None:
    """A message of an async group is over its time, and is handled again with the same attempt, while a handler of a
    process blocks its event loop."""
    history.publish("m", topic="orders")
    for each in groups_of("orders"):
        if each == group:
            history.handle("m", 20, topic="orders", group=each, seconds=seconds + 30, confirmed=False)
            history.handle("m", 20 + seconds, topic="orders", group=each)
        else:
            history.handle("m", 20, topic="orders", group=each)
    history.record.blocked.append((20.1, 20.1 + BLOCKED, by))


@sound
def held_up_by_a_handler_that_blocks_the_event_loop(history: History) -> None:
    held_up(history)


@planted("attempts wrong")
def held_up_by_a_handler_of_another_process(history: History) -> None:
    held_up(history, by=OTHER)


@planted("attempts wrong")
def held_up_by_a_handler_on_an_event_loop_although_it_is_in_a_thread(history: History) -> None:
    held_up(history, group="ship")


@planted("unexplained duplicates")
def killed_long_after_the_settle(history: History) -> None:
    redelivered(history, "kill-consumer", 20.1 + SETTLE + 1)


@planted("unexplained duplicates")
def another_was_killed(history: History) -> None:
    redelivered(history, "kill-consumer", 20.4, to=THIRD)


@planted("unexplained duplicates")
def a_fault_that_was_over_long_ago(history: History) -> None:
    redelivered(history, "silence-consumers", 20 - LEASE_DURATION - 4, seconds=3, to=None)


@planted("unexplained duplicates")
def a_kill_before_it_began(history: History) -> None:
    redelivered(history, "kill-consumer", 19)


@planted("unexplained duplicates")
def only_publishers_were_cut(history: History) -> None:
    redelivered(history, "cut-publishers", 20.4, to=None)


@planted("unexplained duplicates")
def a_fault_but_the_partition_was_never_lost(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, confirmed=False)
    history.fault("cut-consumers", 20.2)
    history.handle("m", 21, attempt=2)


@sound
def acquired_anew_by_the_same_process(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, confirmed=False)
    history.fault("restart-server", 20.2, 1)
    history.acquire(ONE, 22)
    history.handle("m", 23, attempt=2)


@sound
def an_overrun(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, seconds=VISIBILITY_TIMEOUT * 1.5, confirmed=False)
    history.handle("m", 20.1 + VISIBILITY_TIMEOUT, attempt=2)


@planted("unexplained duplicates", "two at once")
def again_before_the_time_is_over(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, seconds=VISIBILITY_TIMEOUT * 0.8, confirmed=False)
    history.handle("m", 20 + VISIBILITY_TIMEOUT * 0.5, attempt=2)


def thawed(history: History, begins: int, after: float) -> None:
    """OTHER has handled everything while ONE was stopped; ONE begins so many of them, so long after it goes on."""
    ids = [f"m{number}" for number in range(begins)]
    for number, id in enumerate(ids):
        history.publish(id, key=id)
        history.handle(id, 30 + number * 0.01, seconds=0.005, by=OTHER, attempt=2)
        history.handle(id, 40 + after + number * 0.01, seconds=0.005, confirmed=False)
    history.fault("stop-consumer", 20, 20, to=ONE)
    history.acquire(OTHER, 29)


@sound
def what_each_thread_of_a_thawed_process_was_about_to_begin(history: History) -> None:
    thawed(history, LATE_BEGINS, 0.01)


@planted("two owners", "unexplained duplicates", "delivered after the ack", "attempts wrong")
def a_thawed_process_that_goes_on_and_on(history: History) -> None:
    thawed(history, LATE_BEGINS + 1, 0.01)


@planted("two owners", "unexplained duplicates", "delivered after the ack", "attempts wrong")
def a_thawed_process_that_begins_much_later(history: History) -> None:
    thawed(history, 1, THAW + 1)


@sound
def an_atomic_handler_run_again_in_place(history: History) -> None:
    history.publish("m", topic=ATOMIC)
    history.handle("m", 2, topic=ATOMIC, confirmed=False)  # ended well, and then the commit met a deadlock
    history.handle("m", 2.2, topic=ATOMIC)


@planted("attempts wrong", "unexplained duplicates")
def run_again_in_place_although_it_is_not_atomic(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, confirmed=False)
    history.handle("m", 2.2)


# -- order ------------------------------------------------------------------------------------------------------------


def two_of_an_ordering_queue(history: History, topic: str = SIMPLE, key: str = "k") -> None:
    history.publish("first", topic=topic, at=1)
    history.publish("second", topic=topic, at=2, key=key)


@planted("out of order")
def the_second_before_the_first(history: History) -> None:
    two_of_an_ordering_queue(history)
    history.handle("second", 3)
    history.handle("first", 4)


@planted("out of order")
def the_second_while_the_first_waits_for_its_retry(history: History) -> None:
    two_of_an_ordering_queue(history)
    history.handle("first", 3, "fail")
    history.handle("second", 4)
    history.handle("first", 5, attempt=2)


@planted("out of order")
def another_key_of_a_strict_partition(history: History) -> None:
    two_of_an_ordering_queue(history, STRICT, key="another")
    history.handle("second", 3, topic=STRICT)
    history.handle("first", 4, topic=STRICT)


@planted("out of order")
def within_a_transaction(history: History) -> None:
    history.publish("first", "second", at=1)
    history.handle("second", 3)
    history.handle("first", 4)


@planted("out of order")
def within_a_transaction_in_a_strict_partition(history: History) -> None:
    history.publish("first", "second", topic=STRICT)
    history.record.transactions[0].messages[1] = (STRICT, "another", "second")
    history.handle("second", 3, topic=STRICT)
    history.handle("first", 4, topic=STRICT)


@planted("out of order")
def a_batch_in_the_wrong_order(history: History) -> None:
    two_of_an_ordering_queue(history, "bulk")
    for group in groups_of("bulk"):
        history.handle("second", 3, topic="bulk", group=group)
        history.handle("first", 3, topic="bulk", group=group)


@sound
def a_batch(history: History) -> None:
    two_of_an_ordering_queue(history, "bulk")
    for id in ("first", "second"):
        history.handle(id, 3, topic="bulk")


@sound
def a_batch_that_failed_and_came_one_by_one(history: History) -> None:
    history.publish("first", "second", topic="bulk")
    for id in ("first", "second"):
        history.handle(id, 3, "fail", topic="bulk")
    for at, id in ((4, "first"), (5, "second")):
        history.handle(id, at, topic="bulk", attempt=2)


@sound
def other_keys_go_on(history: History) -> None:
    two_of_an_ordering_queue(history, key="another")
    history.handle("second", 3)
    history.handle("first", 4)


@sound
def transactions_side_by_side(history: History) -> None:
    history.publish("first", at=1, told=1.5)
    history.publish("second", at=2)
    history.handle("second", 3)
    history.handle("first", 4)


@sound
def the_second_after_the_first_is_dead_although_its_handler_goes_on(history: History) -> None:
    two_of_an_ordering_queue(history)
    for attempt in range(1, MAX_ATTEMPTS):
        history.handle("first", 2.5 + attempt, "fail", attempt=attempt)
    history.handle("first", 20, "fail", attempt=MAX_ATTEMPTS, seconds=12, confirmed=False)
    history.fault("stop-consumer", 20.05, 11, to=ONE)
    history.acquire(OTHER, 29)
    history.dead_letter("first")
    history.record.dead_lettered[SIMPLE, "brave", history.record.dead[0].offset] = 29.1
    history.handle("second", 29.2, by=OTHER)


@planted("two at once")
def two_threads_in_one_ordering_queue(history: History) -> None:
    history.publish("first", at=1, told=1.5)
    history.publish("second", at=2)
    history.handle("first", 3, seconds=1)
    history.handle("second", 3.5)


@sound
def an_ordering_queue_that_goes_on_after_an_overrun(history: History) -> None:
    two_of_an_ordering_queue(history)
    history.handle("first", 3, "fail", seconds=VISIBILITY_TIMEOUT * 3, confirmed=False)
    history.handle("first", 3.1 + VISIBILITY_TIMEOUT, attempt=2)
    history.handle("second", 4 + VISIBILITY_TIMEOUT)


@sound
def a_stray_thread_of_a_partition_that_was_lost_and_won_again(history: History) -> None:
    history.publish("first", at=1, told=1.5)
    history.publish("second", at=2)
    history.handle("first", 3, seconds=2, confirmed=False)
    history.fault("restart-server", 3.1, 0.5)
    history.acquire(ONE, 4)
    history.handle("second", 4.2)
    history.handle("first", 6, attempt=2)


# -- effects, attempts, dead letters ----------------------------------------------------------------------------------


@planted("effects twice")
def a_write_too_many(history: History) -> None:
    history.publish("m", topic=ATOMIC)
    history.handle("m", 2, topic=ATOMIC)
    history.effect("m")


@planted("effects lost")
def acked_without_its_write(history: History) -> None:
    history.publish("m", topic=ATOMIC)
    history.handle("m", 2, topic=ATOMIC)
    history.record.entries.clear()


@planted("effects lost")
def acked_without_its_write_although_it_was_in_doubt(history: History) -> None:
    history.publish("m", topic=ATOMIC, told=None)
    history.handle("m", 2, topic=ATOMIC)
    history.record.entries.clear()


@planted("attempts wrong")
def one_number_twice(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, "fail")
    history.handle("m", 3)


@planted("attempts wrong")
def a_number_left_out(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, "fail")
    history.handle("m", 3, attempt=3)


def a_dead_letter_whose_second_attempt_comes_first(history: History, taken: float) -> None:
    history.record.dead_lettered[DEAD_LETTERS_OF, "judge", 7] = 2.0
    history.fault("silence-consumers", 3)
    history.acquire(OTHER, taken, topic=DEAD_LETTERS)
    history.record.dead_letters.append((DEAD_LETTERS, "judge:7"))
    history.handle("judge:7", 6, topic=DEAD_LETTERS, by=OTHER, attempt=2)


@sound
def a_dead_letter_that_was_claimed_and_not_begun_at_a_takeover(history: History) -> None:
    a_dead_letter_whose_second_attempt_comes_first(history, 4)


@planted("attempts wrong")
def a_dead_letter_that_was_taken_over_before_it_was_one(history: History) -> None:
    a_dead_letter_whose_second_attempt_comes_first(history, 1)


@planted("attempts wrong")
def a_number_left_out_at_a_takeover_without_a_fault(history: History) -> None:
    history.publish("m")
    history.acquire(OTHER, 2)
    history.handle("m", 3, by=OTHER, attempt=2)


@planted("attempts wrong")
def a_number_left_out_after_a_fault_without_a_takeover(history: History) -> None:
    history.publish("m")
    history.fault("cut-consumers", 2)
    history.handle("m", 3, attempt=2)


@planted("attempts wrong")
def two_numbers_left_out_at_one_takeover(history: History) -> None:
    history.publish("m")
    history.fault("kill-consumer", 2, to=ONE)
    history.acquire(OTHER, 3)
    history.handle("m", 4, by=OTHER, attempt=3)


@planted("attempts wrong")
def a_fallen_number(history: History) -> None:
    history.publish("m")
    history.fault("kill-consumer", 2, to=ONE)
    history.acquire(OTHER, 3)
    history.handle("m", 4, "fail", by=OTHER, attempt=2)
    history.handle("m", 5, by=OTHER, attempt=1)


@planted("attempts wrong")
def far_more_attempts_than_allowed(history: History) -> None:
    history.publish("m")
    for attempt in range(1, MAX_ATTEMPTS + 2):
        history.handle("m", 1 + attempt, "fail", attempt=attempt)
    history.handle("m", 20, attempt=MAX_ATTEMPTS + 2)


@sound
def one_attempt_more_alone(history: History) -> None:
    history.publish("m")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        history.handle("m", 1 + attempt, seconds=None, attempt=attempt)
    history.handle("m", 20, attempt=MAX_ATTEMPTS + 1)


@sound
def charged_at_a_takeover_before_it_began(history: History) -> None:
    history.publish("m")
    history.fault("kill-consumer", 2, to=ONE)
    history.acquire(OTHER, 3)
    history.handle("m", 4, by=OTHER, attempt=2)


@sound
def postponed_without_a_charge(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, "postpone")
    history.handle("m", 3, "postpone")
    history.handle("m", 4, "fail")
    history.handle("m", 5, attempt=2)


@sound
def released_by_a_process_that_leaves(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, seconds=None)
    history.fault("leave", 21, to=ONE)
    history.acquire(OTHER, 31)
    history.handle("m", 32, by=OTHER)


@planted("attempts wrong")
def released_before_another_left(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, seconds=None)
    history.fault("leave", 21, to=OTHER)
    history.acquire(OTHER, 31)
    history.handle("m", 32, by=OTHER)


@planted("attempts wrong")
def released_although_it_was_not_told_to_leave(history: History) -> None:
    history.publish("m")
    history.handle("m", 20, seconds=None)
    history.fault("kill-consumer", 21, to=ONE)
    history.acquire(OTHER, 31)
    history.handle("m", 32, by=OTHER)


@planted("attempts wrong")
def a_number_left_out_long_after_a_short_fault(history: History) -> None:
    history.publish("m", at=MINUTE)
    history.fault("kill-consumer", MINUTE - 2 * LEASE_DURATION, to=ONE)
    history.fault("pause-topic", 2 * MINUTE, 2 * LEASE_DURATION)  # there are longer ones
    history.acquire(OTHER, MINUTE + 1)
    history.handle("m", MINUTE + 2, by=OTHER, attempt=2)


@planted("dead-lettered without reason")
def dead_lettered_after_two_failures(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, "fail")
    history.handle("m", 3, "fail", attempt=2)
    history.dead_letter("m")


@planted("dead-lettered without reason")
def dead_lettered_before_it_was_ever_handled(history: History) -> None:
    history.publish("m")
    history.dead_letter("m")


@planted("dead-lettered without reason")
def dead_lettered_although_it_was_acked_at_last(history: History) -> None:
    history.publish("m")
    for attempt in range(1, MAX_ATTEMPTS):
        history.handle("m", 1 + attempt, "fail", attempt=attempt)
    history.handle("m", 20, attempt=MAX_ATTEMPTS)
    history.dead_letter("m")


@planted("dead-lettered without reason")
def dead_lettered_although_its_effect_is_there(history: History) -> None:
    history.publish("m", topic=ATOMIC)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        history.handle("m", 1 + attempt, "fail", attempt=attempt, topic=ATOMIC)
    history.dead_letter("m", topic=ATOMIC)
    history.effect("m")


@planted("dead-lettered without reason")
def dead_lettered_twice(history: History) -> None:
    history.publish("m")
    history.handle("m", 2, "reject")
    history.dead_letter("m")
    history.dead_letter("m")


@sound
def dead_lettered_after_its_last_attempt(history: History) -> None:
    history.publish("m")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        history.handle("m", 1 + attempt, "fail", attempt=attempt)
    history.dead_letter("m")


@sound
def dead_lettered_after_it_killed_its_process_each_time(history: History) -> None:
    history.publish("m")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        history.handle("m", 10 * attempt, seconds=None, attempt=attempt, by=attempt)
        history.fault("handler-dies", 10 * attempt, to=attempt)
        history.acquire(attempt + 1, 10 * attempt + 9)
    history.dead_letter("m")


@sound
def dead_lettered_after_a_last_attempt_whose_ack_was_lost(history: History) -> None:
    history.publish("m")
    for attempt in range(1, MAX_ATTEMPTS):
        history.handle("m", 1 + attempt, "fail", attempt=attempt)
    history.handle("m", 20, attempt=MAX_ATTEMPTS, confirmed=False)
    history.fault("kill-consumer", 20.2, to=ONE)
    history.dead_letter("m")


@planted("dead-lettered without reason")
def dead_lettered_after_a_last_attempt_that_succeeded(history: History) -> None:
    history.publish("m")
    for attempt in range(1, MAX_ATTEMPTS):
        history.handle("m", 1 + attempt, "fail", attempt=attempt)
    history.handle("m", 20, attempt=MAX_ATTEMPTS, confirmed=False)
    history.dead_letter("m")


def dead_lettered_one_attempt_early(history: History, takeovers: int) -> None:
    """Each takeover is of a process that was killed; the last one's would have begun the last attempt."""
    history.publish("m")
    for attempt in range(1, MAX_ATTEMPTS):
        history.handle("m", 10 * attempt, seconds=None, attempt=attempt)
    for number in range(takeovers):
        history.fault("kill-consumer", 40 + 10 * number)
        history.acquire(OTHER + number, 49 + 10 * number)
    history.dead_letter("m")


@sound
def dead_lettered_after_a_last_attempt_that_was_claimed_and_never_begun(history: History) -> None:
    dead_lettered_one_attempt_early(history, takeovers=2)


@planted("dead-lettered without reason")
def dead_lettered_one_attempt_early_at_the_first_takeover(history: History) -> None:
    dead_lettered_one_attempt_early(history, takeovers=1)


# -- owners, leftovers ------------------------------------------------------------------------------------------------


@planted("two owners")
def begun_by_a_process_that_has_lost_it(history: History) -> None:
    history.publish("m")
    history.acquire(OTHER, 2)
    history.handle("m", 3)


@planted("two owners")
def begun_by_a_process_that_never_had_it(history: History) -> None:
    history.publish("m")
    history.handle("m", 3, partition=1)


@planted("two owners")
def acquired_while_a_handler_runs(history: History) -> None:
    history.publish("m")
    history.handle("m", 3, seconds=1)
    history.acquire(OTHER, 3.5)


@sound
def acquired_after_a_fault_while_a_handler_runs(history: History) -> None:
    history.publish("m")
    history.handle("m", 3, "fail", seconds=1, confirmed=False)
    history.fault("silence-consumers", 2, 1.2)
    history.acquire(OTHER, 3.5)
    history.handle("m", 5, by=OTHER, attempt=2)


@sound
def acquired_after_an_overrun_while_the_handler_goes_on(history: History) -> None:
    history.publish("m")
    history.handle("m", 3, "fail", seconds=VISIBILITY_TIMEOUT * 2, confirmed=False)
    history.acquire(OTHER, 3.1 + VISIBILITY_TIMEOUT)
    history.handle("m", 4 + VISIBILITY_TIMEOUT, by=OTHER, attempt=2)


@sound
def acquired_and_announced_late(history: History) -> None:
    """OTHER was stopped between its commit and what it says of it; THIRD has acquired meanwhile."""
    history.publish("m", "n")
    history.fault("stop-consumer", 10, 10, to=OTHER)
    history.acquire(THIRD, 19)
    history.acquire(OTHER, 20.01)
    history.handle("m", 20, by=THIRD)
    history.handle("n", 20.2, by=THIRD)


@planted("left behind")
def rows_left(history: History) -> None:
    history.record.leftovers = {"sqlqueue_message": 3, "sqlqueue_receipt": 0}


# -- progress ---------------------------------------------------------------------------------------------------------


def of_one_partition(count: int, topic: str = SIMPLE) -> list[str]:
    """Return keys that share a partition of a topic, the first of all."""
    partitions = PHASE_TOPICS.get(topic, PARTITIONS)
    keys = (f"k{number}" for number in range(1000))
    return [key for key in keys if partition_of(key, partitions) == 0][:count]


def stands(history: History, seconds: float, *, until: float = 200.0) -> None:
    """Two keys of a partition: the first's message is handled at 10, and the second's so much later."""
    one, other = of_one_partition(2)
    history.publish("first", key=one, at=9)
    history.publish("second", key=other, at=9.5)
    history.handle("first", 10)
    history.handle("second", 10 + seconds)
    history.record.until = until


@planted("stood still")
def another_key_that_waits_for_nothing(history: History) -> None:
    stands(history, BOUND + 1)


@sound
def another_key_that_waits_for_less_than_the_bound(history: History) -> None:
    stands(history, BOUND - 1)


@planted("stood still")
def behind_a_key_that_waits_for_its_retry(history: History) -> None:
    """The first key is served at its time; the other one waits for it, and should not."""
    one, other = of_one_partition(2, "waiting")
    history.publish("head", "behind", topic="waiting", key=one, at=9)
    history.publish("other", topic="waiting", key=other, at=9.5)
    history.handle("head", 10, "retry", topic="waiting")
    history.handle("head", 10 + WAIT, topic="waiting", attempt=2)
    history.handle("behind", 11 + WAIT, topic="waiting")
    history.handle("other", 12 + WAIT, topic="waiting")
    history.record.until = 200.0


@sound
def behind_its_own_key_that_waits_for_its_retry(history: History) -> None:
    key = of_one_partition(1, "waiting")[0]
    history.publish("head", topic="waiting", key=key, at=9)
    history.publish("behind", topic="waiting", key=key, at=9.5)
    history.handle("head", 10, "retry", topic="waiting")
    history.handle("head", 10 + WAIT, topic="waiting", attempt=2)
    history.handle("behind", 11 + WAIT, topic="waiting")
    history.record.until = 200.0


@planted("stood still")
def a_retry_that_never_comes(history: History) -> None:
    history.publish("m", at=9, key=of_one_partition(1)[0])
    history.handle("m", 10, "fail")
    history.record.until = 200.0
    history.leave("m")


def a_dead_letter_that_failed(history: History) -> None:
    history.handle("judge:1", 10, "fail", topic=DEAD_LETTERS)
    history.record.until = 200.0


@planted("stood still")
def a_retry_of_a_dead_letter_that_never_comes(history: History) -> None:
    a_dead_letter_that_failed(history)
    history.record.dead_letters.append((DEAD_LETTERS, "judge:1"))
    history.leave("judge:1", topic=DEAD_LETTERS)


@sound
def a_dead_letter_that_a_person_has_removed_before_its_retry(history: History) -> None:
    a_dead_letter_that_failed(history)


def a_batch_that_failed(history: History, every: float) -> None:
    """Five messages of a batch fail together, and are tried again one by one."""
    ids = [f"m{number}" for number in range(5)]
    for id, key in zip(ids, of_one_partition(5, "flood"), strict=True):
        history.publish(id, topic="flood", key=key, at=9)
    for number, id in enumerate(ids):
        history.handle(id, 10, "fail", topic="flood")
        history.handle(id, 12 + number * every, topic="flood", attempt=2)
    history.record.until = 200.0


@sound
def behind_the_messages_of_a_batch_that_failed(history: History) -> None:
    a_batch_that_failed(history, BOUND - 1)
    history.publish("behind", topic="flood", key=of_one_partition(1, "flood")[0], at=9.5)
    history.handle("behind", 12 + 5 * (BOUND - 1), topic="flood")


@planted("stood still")
def long_after_the_messages_of_a_batch_that_failed(history: History) -> None:
    a_batch_that_failed(history, 1)
    history.publish("behind", topic="flood", key=of_one_partition(1, "flood")[0], at=9.5)
    history.handle("behind", 12 + 5 + BOUND, topic="flood")


@planted("stood still")
def the_messages_of_a_batch_that_failed_come_too_slowly(history: History) -> None:
    a_batch_that_failed(history, BOUND + 3)


def in_flight_at_a_kill(history: History, every: float, again: Sequence[int]) -> None:
    """Five messages of a partition are in flight when their process is killed; another one begins them again."""
    ids = [f"m{number}" for number in range(5)]
    for id, key in zip(ids, of_one_partition(5), strict=True):
        history.publish(id, key=key, at=9)
        history.handle(id, 10, seconds=None, partition=0)
    history.fault("kill-consumer", 10.5, to=ONE)
    history.acquire(OTHER, 11)
    for place, number in enumerate(again):
        began = 10.5 + UNSERVED + RECOVERY + (place + 1) * every
        history.handle(ids[number], began, attempt=2, by=OTHER)
    history.record.until = 300.0


@sound
def messages_in_doubt_come_one_by_one(history: History) -> None:
    in_flight_at_a_kill(history, BOUND - 1, range(5))


@planted("stood still")
def messages_in_doubt_come_too_slowly(history: History) -> None:
    in_flight_at_a_kill(history, BOUND + 3, range(5))


@planted("stood still")
def a_message_in_doubt_comes_after_those_behind_it(history: History) -> None:
    in_flight_at_a_kill(history, BOUND / 2 + 1, (1, 2, 3, 4, 0))


def in_flight_and_never_begun(history: History, attempt: int) -> None:
    """Messages of two partitions, charged in flight: their process is killed before it has begun one. Another one
    begins those of one partition first, one by one."""
    keys = [f"k{number}" for number in range(100)]
    first = [key for key in keys if partition_of(key, PARTITIONS) == 0][:3]
    second = [key for key in keys if partition_of(key, PARTITIONS) == 1][:1]
    history.acquire(ONE, 1, partition=1)
    for key in (*first, *second):
        history.publish(f"of-{key}", key=key, at=9)
    history.fault("kill-consumer", 10.5, to=ONE)
    for partition in (0, 1):
        history.acquire(OTHER, 11, partition=partition)
    for place, key in enumerate((*first, *second), start=1):
        began = 10.5 + UNSERVED + RECOVERY + place * (BOUND - 1)
        partition = partition_of(key, PARTITIONS)
        history.handle(f"of-{key}", began, attempt=attempt, by=OTHER, partition=partition)
    history.record.until = 300.0


@sound
def messages_in_doubt_that_were_never_begun_come_one_by_one(history: History) -> None:
    in_flight_and_never_begun(history, 2)


@planted("stood still")
def messages_that_were_never_in_flight_do_not_wait_for_those_of_other_partitions(history: History) -> None:
    in_flight_and_never_begun(history, 1)


@planted("stood still")
def never_begun_although_the_run_went_on(history: History) -> None:
    one, other = of_one_partition(2)
    history.publish("first", key=one, at=9)
    history.publish("second", key=other, at=9.5)
    history.handle("first", 10)
    history.record.until = 10 + BOUND + 1
    history.leave("second")


@sound
def never_begun_and_behind_one_that_was_never_settled(history: History) -> None:
    """One standstill is told once: of what stands first in the ordering queue."""
    key = of_one_partition(1)[0]
    history.publish("first", key=key, at=9)
    history.publish("second", key=key, at=9.5)
    history.handle("first", 10, "fail")
    history.record.until = 10 + BOUND - 1
    history.leave("first", "second")


@sound
def on_a_machine_that_has_other_work(history: History) -> None:
    history.record.crowded = 2.0
    stands(history, 2 * BOUND - 1)


@planted("stood still")
def on_a_machine_that_has_other_work_but_not_so_much(history: History) -> None:
    history.record.crowded = 2.0
    stands(history, 2 * BOUND + 1)


@sound
def in_the_beginning(history: History) -> None:
    history.record.since = 5.0
    stands(history, UNSERVED + RECOVERY - 5 + BOUND - 1)


@sound
def while_the_server_was_away(history: History) -> None:
    history.fault("kill-server", 11, 2, to=None)
    stands(history, 3 + UNSERVED + RECOVERY + BOUND - 1)


@planted("stood still")
def long_after_the_server_was_away(history: History) -> None:
    history.fault("kill-server", 11, 2, to=None)
    stands(history, 3 + UNSERVED + RECOVERY + BOUND + 1)


@sound
def while_its_owner_was_dead(history: History) -> None:
    history.fault("kill-consumer", 11, to=ONE)
    history.acquire(OTHER, 12 + UNSERVED)
    stands_for(history, UNSERVED + RECOVERY)


def stands_for(history: History, seconds: float, by: int = OTHER) -> None:
    """As stands(), but another process handles the second."""
    one, other = of_one_partition(2)
    history.publish("first", key=one, at=9)
    history.publish("second", key=other, at=9.5)
    history.handle("first", 10)
    history.handle("second", 10 + seconds, by=by)
    history.record.until = 200.0


@planted("stood still")
def while_another_than_its_owner_was_dead(history: History) -> None:
    history.fault("kill-consumer", 11, to=THIRD)
    stands(history, UNSERVED + RECOVERY)


@planted("stood still")
def its_owner_hangs_and_no_process_takes_over(history: History) -> None:
    history.fault("hang-consumer", 11, 100, to=ONE)
    stands(history, 1 + HUNG_AFTER + UNSERVED + RECOVERY + BOUND + 1)


@sound
def its_owner_hangs_and_is_replaced(history: History) -> None:
    history.fault("hang-consumer", 11, 100, to=ONE)
    history.acquire(OTHER, 12 + HUNG_AFTER)
    stands_for(history, HUNG_AFTER + UNSERVED + RECOVERY)


@sound
def taken_by_a_process_that_is_stopped(history: History) -> None:
    history.fault("stop-consumer", 10.5, 9, to=OTHER)
    history.acquire(OTHER, 11)
    history.acquire(THIRD, 12 + UNSERVED)
    stands_for(history, 9 + UNSERVED + RECOVERY, by=THIRD)


def behind_a_transaction(history: History, beyond: int) -> None:
    """A transaction is open from 9 to 60; so many messages are handled at 10, and one more after its end."""
    *keys, other = of_one_partition(50, "flood")
    history.publish("held", topic="orders", at=9, told=51)
    for key in keys:
        ids = [f"{key}/{number}" for number in range(beyond // len(keys))]
        history.publish(*ids, topic="flood", key=key, at=9.1)
        for id in ids:
            history.handle(id, 10, topic="flood", confirmed=False)
    history.publish("more", topic="flood", key=other, at=9.2)
    history.handle("more", 60.5, topic="flood")
    history.handle("held", 60.5, topic="orders")
    history.record.until = 200.0


@sound
def a_full_window_behind_an_open_transaction(history: History) -> None:
    behind_a_transaction(history, WINDOW)


@planted("stood still")
def a_window_with_room_behind_an_open_transaction(history: History) -> None:
    behind_a_transaction(history, 100)


# -- what keeps failing -----------------------------------------------------------------------------------------------


@planted("failed without reason")
def queries_of_a_handler_that_fail_again_and_again(history: History) -> None:
    for number in range(AGAIN_AND_AGAIN):
        history.publish(f"m{number}", key=f"{number}")
        history.handle(f"m{number}", 2 + number, "error OperationalError(2006)")
        history.handle(f"m{number}", 3 + number, attempt=2)


@sound
def queries_of_a_handler_that_fail_in_different_processes(history: History) -> None:
    for number, process in enumerate((ONE, OTHER, THIRD)):
        history.publish(f"m{number}", key=f"{number}")
        history.acquire(process, 2 + 2 * number)
        history.handle(f"m{number}", 2.1 + 2 * number, "error OperationalError(2006)", by=process)
        history.handle(f"m{number}", 2.9 + 2 * number, attempt=2, by=process)


def complains(history: History, times: int, fault: str = "OTHER") -> None:
    history.record.complaints += [(20.0 + number, ONE, "recorder", fault) for number in range(times)]


@planted("tasks failing")
def a_task_that_fails_while_another_process_is_dead(history: History) -> None:
    history.fault("kill-consumer", 19, to=OTHER)
    complains(history, AGAIN_AND_AGAIN)


@planted("wrong answers")
def a_publish_that_was_refused_while_a_consumer_was_dead(history: History) -> None:
    history.fault("kill-consumer", 19, to=ONE)
    history.record.wrong.append((20.0, "OperationalError(1153)"))


@sound
def a_task_that_failed_once_more_than_once(history: History) -> None:
    complains(history, AGAIN_AND_AGAIN - 1)


@sound
def a_task_that_met_a_lock(history: History) -> None:
    complains(history, 10, "CONTENTION")


@sound
def a_task_that_fails_while_the_server_is_away(history: History) -> None:
    history.fault("kill-server", 15, 10, to=None)
    complains(history, 10, "GONE")


@planted("wrong answers")
def a_publish_that_was_refused(history: History) -> None:
    history.record.wrong.append((20.0, "OperationalError(2006)"))


@sound
def a_publish_that_failed_while_the_server_was_away(history: History) -> None:
    history.fault("kill-server", 15, 4, to=None)
    history.record.wrong.append((20.0, "OperationalError(2006)"))


# -- dead letters that are consumed, discarded, delivered again -------------------------------------------------------


def dies(history: History, id: str) -> None:
    history.publish(id, topic="doomed")
    history.handle(id, 2, "reject", topic="doomed")


@planted("lost")
def a_dead_letter_that_its_topics_consumer_never_got(history: History) -> None:
    dies(history, "m")
    history.dead_letter("m", topic="doomed")
    history.record.dead_letters.append((DEAD_LETTERS, "judge:1"))


@sound
def a_dead_letter_that_its_topics_consumer_got(history: History) -> None:
    dies(history, "m")
    history.dead_letter("m", topic="doomed")
    history.record.dead_letters.append((DEAD_LETTERS, "judge:1"))
    history.handle("judge:1", 3, topic=DEAD_LETTERS)


@planted("lost")
def a_dead_letter_that_is_gone_although_it_was_not_discarded(history: History) -> None:
    dies(history, "m")


@sound
def a_dead_letter_that_was_discarded(history: History) -> None:
    dies(history, "m")
    history.record.removed.add(("doomed", "judge", "m"))


@planted("lost")
def a_dead_letter_whose_replay_never_came(history: History) -> None:
    a_dead_letter_that_was_discarded(history)
    history.publish("replay:7", topic="doomed", at=4)


# ---------------------------------------------------------------------------------------------------------------------


test_what_was_planted_is_found_and_nothing_else = STORIES.test()


def test_every_kind_of_violation_has_been_planted() -> None:
    assert STORIES.kinds == VIOLATIONS.keys() - OTHERS


def test_a_run_of_many_sound_stories_is_sound() -> None:
    history = History()
    everything_once(history)
    checker = history.check()
    assert not checker.problems
    assert checker.figures["acks confirmed"] == 2 * len(READERS)
    assert checker.deliveries == {"key": 12, "none": 2, "partition": 2}


def test_disorder_is_counted_by_ordering() -> None:
    for story, by_ordering in (
        (the_second_before_the_first, {"key": 1, "partition": 0}),
        (another_key_of_a_strict_partition, {"key": 0, "partition": 1}),
        (within_a_transaction_in_a_strict_partition, {"key": 0, "partition": 1}),
    ):
        history = History()
        story(history)
        assert history.check().disorder == by_ordering


def test_orderless_groups_have_no_disorder() -> None:
    history = History()
    two_of_an_ordering_queue(history, "orders")
    history.handle("second", 3, topic="orders", group="audit")
    history.handle("first", 4, topic="orders", group="audit")
    for group in ("ship", "notify"):
        history.handle("first", 3, topic="orders", group=group)
        history.handle("second", 4, topic="orders", group=group)
    assert not found_in(history)


def test_duplicates_are_counted_by_what_explains_them() -> None:
    for story, why in (
        (killed_before_the_settle, "kill-consumer"),
        (an_overrun, "overrun"),
        (an_atomic_handler_run_again_in_place, "a deadlock's rerun"),
        (killed_long_after_the_settle, "nothing"),
    ):
        history = History()
        story(history)
        assert history.check().duplicates == {why: 1}


def test_what_stopped_processes_begin_late_is_counted() -> None:
    history = History()
    what_each_thread_of_a_thawed_process_was_about_to_begin(history)
    assert history.check().figures[LATE] == LATE_BEGINS


@pytest.mark.parametrize("kind", ["stop-consumer", "stop-publisher"])
def test_where_there_is_one_writer_a_stopped_process_may_hold_up_the_others(kind: str) -> None:
    history = History()
    redelivered(history, kind, 19, seconds=6, to=THIRD)
    assert not found_in(history, one_writer=True)
    assert found_in(history, one_writer=False) == {"unexplained duplicates": 1}


def test_many_problems_are_counted_and_ten_of_them_told() -> None:
    history = History()
    history.publish(*(f"m{number}" for number in range(50)))
    checker = history.check()
    assert checker.violations["lost"] == 50
    assert len(checker.problems) == 10
