"""The checks of everyday jobs find what was planted into a history, and nothing in those that are sound."""

from __future__ import annotations

from tests.soak import job_checks
from tests.soak.job_checks import TOO_LATE
from tests.soak.job_records import CREATED, IGNORED, UPDATED, Enqueued, KeptResult, LogEntry
from tests.soak.job_stories import AHEAD, NAME, TICKED, JobHistory
from tests.soak.records import Fault
from tests.soak.stories import ONE, Stories
from tests.soak.workload import (
    CALLED,
    CROWDED,
    FLEETING,
    JOB_READERS,
    LEASE_DURATION,
    MEMBERS,
    NAMED,
    REQUESTS,
    SCHEDULES,
    TICKS,
)

STORIES = Stories(JobHistory)
planted, sound = STORIES.planted, STORIES.sound


# -- ticks ------------------------------------------------------------------------------------------------------------


@sound
def every_tick_once(history: JobHistory) -> None:
    history.ticks()


@planted("ticks wrong")
def one_is_missing_of_all(history: JobHistory) -> None:
    history.ticks(("each", 7))


@planted("ticks wrong")
def the_last_one_is_missing_of_all(history: JobHistory) -> None:
    history.ticks(("each", TICKED))


@planted("ticks wrong")
def one_is_left_out_right_after_another(history: JobHistory) -> None:
    history.ticks(("latest", 7))


@planted("ticks wrong")
def one_is_left_out_within_a_lease_after_another(history: JobHistory) -> None:
    history.ticks(*(("fresh", number) for number in range(7, 7 + int(LEASE_DURATION / 2))))


GONE = tuple(range(5, 5 + int(LEASE_DURATION)))  # the first ticks after the fourth


@planted("ticks wrong")
def all_of_them_are_missing_while_no_process_ran(history: JobHistory) -> None:
    history.ticks(*(("each", number) for number in (*GONE, GONE[-1] + 1)))


@sound
def some_are_left_out_while_the_schedules_were_paused(history: JobHistory) -> None:
    history.ticks(*(("fresh", number) for number in (7, 8)), ("latest", 13))
    history.jobs.pauses.append((12.5, 16.5))


@planted("ticks wrong")
def one_is_left_out_before_a_pause(history: JobHistory) -> None:
    history.ticks(("latest", 11))
    history.jobs.pauses.append((12.5, 16.5))


@planted("ticks wrong")
def a_schedule_that_never_ticked(history: JobHistory) -> None:
    history.ticks(*(("fresh", number) for number in range(TICKED)))


@planted("ticks wrong")
def one_after_the_end(history: JobHistory) -> None:
    history.ticks()
    history.tick("each", TICKED + 1)


@planted("ticks wrong")
def one_between_two_times(history: JobHistory) -> None:
    history.ticks()
    history.tick("fresh", 2.5)  # type: ignore[arg-type]


@planted("ticks wrong")
def one_of_an_unknown_schedule(history: JobHistory) -> None:
    history.ticks()
    history.log(TICKS, "other@1970-01-12T13:46:42Z", 2, {}, group="other")


@planted("ticks wrong")
def one_before_its_time(history: JobHistory) -> None:
    history.ticks(("each", 3))
    history.tick("each", 3, late=-0.05)


@planted("ticks wrong")
def one_at_two_offsets(history: JobHistory) -> None:
    history.ticks()
    history.tick("each", 3, handled=False)


@planted("ticks wrong")
def one_with_another_payload(history: JobHistory) -> None:
    history.ticks(("each", 3))
    history.tick("each", 3, tick="1970-01-12T13:46:41Z")


@planted("lost")
def one_that_was_never_handled(history: JobHistory) -> None:
    history.ticks(("each", 3))
    history.tick("each", 3, handled=False)


@planted("never published")
def one_that_was_handled_and_is_not_in_the_log(history: JobHistory) -> None:
    history.ticks()
    history.handle("each@1970-01-12T13:45:00Z", 20, topic=TICKS)


@sound
def left_out_after_ticks_that_were_published_late(history: JobHistory) -> None:
    """The last process that attended did so at the fourth: what was due within a lease came when another one did, and
    what was due after that is left out."""
    back = 21
    attended = range(5, 5 + int(LEASE_DURATION))
    history.ticks(*(("latest", number) for number in range(5, back)))
    for number in attended:
        history.tick("latest", number, late=back + 0.2 - number)


# -- names ------------------------------------------------------------------------------------------------------------


@sound
def scheduled_replaced_and_there(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.act("schedule", 1.2, IGNORED)
    history.comes(history.act("replace", 2, UPDATED))


@sound
def cancelled_and_never_there(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.act("cancel", 2, True)
    history.act("cancel", 3, False)


@sound
def cancelled_and_scheduled_anew(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.act("cancel", 2, True)
    history.comes(history.act("schedule", 3, CREATED))


@sound
def whose_commit_is_in_doubt(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.act("replace", 1.2, None)
    history.act("cancel", 2, None)
    history.act("schedule", 3, CREATED)


@sound
def of_two_that_overlap_either_may_be_the_last(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.comes(history.act("replace", 2, UPDATED, lasts=0.5))
    history.act("replace", 2.4, UPDATED)


@sound
def scheduled_and_published_by_transactions_that_do_not_see_each_other(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED, lasts=0.5)
    history.comes(history.act("publish", 1.2, CREATED))


@sound
def a_cancellation_too_late(history: JobHistory) -> None:
    history.comes(history.act("schedule", 1, CREATED, delay=2.0), at=3.1)
    history.act("cancel", 3, False)


@planted("names wrong")
def cancelled_and_there(history: JobHistory) -> None:
    value = history.act("schedule", 1, CREATED)
    history.act("cancel", 2, True)
    history.comes(value)


@planted("names wrong")
def replaced_and_there_as_it_was(history: JobHistory) -> None:
    value = history.act("schedule", 1, CREATED)
    history.act("replace", 2, UPDATED)
    history.comes(value)


@planted("names wrong")
def created_and_never_there(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)


@planted("names wrong")
def created_after_a_cancellation_and_never_there(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.act("cancel", 2, True)
    history.act("schedule", 3, CREATED)


@planted("names wrong")
def ignored_and_there(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.comes(history.act("schedule", 2, IGNORED))


@planted("names wrong")
def taken_back_and_there(history: JobHistory) -> None:
    history.comes(history.act("schedule", 1, None, back=True))


@planted("names wrong")
def there_with_what_was_never_offered(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.comes(77)


@planted("names wrong")
def handed_over_with_another_value_than_the_log_has(history: JobHistory) -> None:
    old = history.act("schedule", 1, CREATED)
    history.comes(history.act("replace", 2, UPDATED))
    history.jobs.values[NAME].add(old)


@planted("names wrong")
def there_twice(history: JobHistory) -> None:
    value = history.act("schedule", 1, CREATED)
    history.comes(value)
    history.log(NAMED, NAME, 11, {"value": value, "do": "ok"})


@planted("names wrong")
def created_twice(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED, lasts=0.5)
    history.comes(history.act("schedule", 1.2, CREATED, lasts=0.5))


@planted("names wrong")
def cancelled_twice(history: JobHistory) -> None:
    history.act("schedule", 1, CREATED)
    history.act("cancel", 2, True)
    history.act("cancel", 2.5, True)


@planted("names wrong")
def ignored_and_nothing_was_there(history: JobHistory) -> None:
    history.act("schedule", 1, IGNORED)


@planted("names wrong")
def updated_and_nothing_was_there(history: JobHistory) -> None:
    history.comes(history.act("replace", 1, UPDATED))


@planted("names wrong")
def too_late_although_it_was_in_time(history: JobHistory) -> None:
    history.comes(history.act("schedule", 1, CREATED, delay=2.0), at=3.1)
    history.act("cancel", 1.5, False)


# -- results ----------------------------------------------------------------------------------------------------------


@sound
def tasks_that_ended_as_they_had_to(history: JobHistory) -> None:
    history.task("flaky", "SUCCESSFUL", {"sum": 5}, 1)


@sound
def a_task_that_failed_as_it_had_to(history: JobHistory) -> None:
    history.task("fail", "FAILED", None, 1, dead=1)


@sound
def a_task_in_doubt_that_is_not_there(history: JobHistory) -> None:
    history.jobs.enqueued.append(Enqueued("t", "add", 5))


@planted("results wrong")
def a_task_that_is_not_there(history: JobHistory) -> None:
    history.jobs.enqueued.append(Enqueued("t", "add", 5, told=True))


@planted("results wrong")
def a_task_that_was_taken_back_and_is_there(history: JobHistory) -> None:
    history.task("add", "SUCCESSFUL", {"sum": 5}, 0, told=False)


@planted("results wrong")
def a_task_that_still_runs(history: JobHistory) -> None:
    history.task("add", "RUNNING", None, 0)


@planted("results wrong")
def a_task_with_another_value(history: JobHistory) -> None:
    history.task("add", "SUCCESSFUL", {"sum": 6}, 0)


@planted("results wrong")
def a_task_that_failed_and_had_not_to(history: JobHistory) -> None:
    history.task("deadly", "FAILED", None, 1, dead=1)


@planted("results wrong")
def a_task_that_was_run_again_although_it_must_not(history: JobHistory) -> None:
    history.task("fail", "FAILED", None, 2, dead=1)


@planted("results wrong")
def a_failed_task_that_is_no_dead_letter(history: JobHistory) -> None:
    history.task("fail", "FAILED", None, 1)


@planted("results wrong")
def a_successful_task_that_is_a_dead_letter(history: JobHistory) -> None:
    history.task("add", "SUCCESSFUL", {"sum": 5}, 0, dead=1)


@planted("results wrong")
def a_handler_whose_result_was_not_kept(history: JobHistory) -> None:
    history.comes(history.act("schedule", 1, CREATED))
    history.jobs.results.clear()


@planted("results wrong")
def a_result_of_another_value(history: JobHistory) -> None:
    history.comes(history.act("schedule", 1, CREATED))
    history.jobs.results[:] = [KeptResult(NAMED, "herald", NAME, "acked", {"value": 2})]


# -- expiry -----------------------------------------------------------------------------------------------------------


@sound
def handled_in_time(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.handle("m", 21.9, topic=FLEETING)


@sound
def expired_without_its_handler(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.expired(22.1)


@sound
def failed_in_time_and_expired_before_its_retry(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.handle("m", 21, "fail", topic=FLEETING)
    history.expired(22.1)


@sound
def begun_late_by_a_process_that_was_stopped(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.record.faults.append(Fault("stop-consumer", 21, 31, frozenset([ONE])))
    history.handle("m", 31.1, topic=FLEETING)


@planted("handled too late")
def begun_after_its_time(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.handle("m", 22 + TOO_LATE + 0.1, topic=FLEETING)


@planted("handled too late")
def begun_later_than_a_fault_of_its_process_was_long(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.record.faults.append(Fault("stop-consumer", 21, 23, frozenset([ONE])))
    history.handle("m", 26, topic=FLEETING)


@planted("handled too late")
def begun_late_while_another_process_was_stopped(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.record.faults.append(Fault("stop-consumer", 21, 31, frozenset([ONE + 1])))
    history.handle("m", 31.1, topic=FLEETING)


@planted("lost")
def neither_handled_nor_expired(history: JobHistory) -> None:
    history.fleeting(expires=22)


@planted("dead-lettered without reason")
def expired_before_its_time(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.expired(21.9)


@planted("dead-lettered without reason")
def expired_although_it_never_expires(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.expired(23)
    history.jobs.log[:] = [LogEntry(FLEETING, "k", "m", 1, {}, "", 20 + AHEAD)]


@planted("dead-lettered without reason")
def expired_after_its_ack(history: JobHistory) -> None:
    history.fleeting(expires=22)
    history.handle("m", 21, topic=FLEETING)
    history.expired(23)


# -- batches ----------------------------------------------------------------------------------------------------------


@sound
def a_batch_has_ended(history: JobHistory) -> None:
    history.batch()


@sound
def a_batch_has_ended_with_a_dead_letter(history: JobHistory) -> None:
    history.failed_member("finished", "finish", "failure")


@sound
def a_batch_was_undone(history: JobHistory) -> None:
    history.jobs.batches["b"] = False


@sound
def a_batch_was_given_up(history: JobHistory) -> None:
    history.batch("cancelled", "none", told=False)


@sound
def a_publisher_was_killed_while_it_filled_a_batch(history: JobHistory) -> None:
    history.batch("open", "none", told=None)


@sound
def a_batch_never_began(history: JobHistory) -> None:
    history.jobs.batches["b"] = None


@planted("batches wrong")
def a_batch_is_gone(history: JobHistory) -> None:
    history.jobs.batches["b"] = True


@planted("batches wrong")
def a_member_was_counted_twice(history: JobHistory) -> None:
    history.batch(acked=7)


@planted("batches wrong")
def a_member_was_not_counted(history: JobHistory) -> None:
    history.batch("running", "none", acked=5)


@planted("batches wrong")
def a_dead_member_was_counted_as_acked(history: JobHistory) -> None:
    history.failed_member("finished", "finish", "failure", acked=5, dead=1)


@planted("batches wrong")
def a_callback_is_missing(history: JobHistory) -> None:
    history.batch("finished", "finish")


@planted("batches wrong")
def a_callback_came_twice(history: JobHistory) -> None:
    history.batch("finished", "finish", "success", "finish")


@planted("batches wrong")
def a_batch_succeeded_with_a_dead_letter(history: JobHistory) -> None:
    history.failed_member("finished", "finish", "failure", "success")


@planted("batches wrong")
def a_batch_that_was_given_up_is_finished(history: JobHistory) -> None:
    history.batch("finished", told=False)


@planted("batches wrong")
def a_batch_was_finished_before_its_last_member(history: JobHistory) -> None:
    history.batch(at=2.5)


# -- tests ------------------------------------------------------------------------------------------------------------


test_what_was_planted_is_found_and_nothing_else = STORIES.test()


def test_a_tick_is_left_out_if_no_process_attended_for_a_lease() -> None:
    history = JobHistory()
    gap = range(5, 6 + int(LEASE_DURATION))  # the fourth was published, and a lease after it the processes came back
    history.ticks(*(("latest", number) for number in gap))
    found = history.check().problems
    assert len(found) == LEASE_DURATION, "the last one of them was due when no process had attended for a lease"


def test_the_figures_say_how_much_was_checked() -> None:
    history = JobHistory()
    history.ticks(("latest", 4))
    history.comes(history.act("schedule", 1, CREATED))
    history.act("cancel", 3, False)
    history.task("add", "SUCCESSFUL", {"sum": 5}, 0)
    history.fleeting(expires=22)
    history.expired(22.1)
    history.batch()
    assert job_checks.figures(history.record) == {
        "ticks published": 2 * TICKED + TICKED // 2 - 1,
        "ticks left out while no process attended": 1,
        "longest delay of a tick (s)": 0.1,
        "acts on names": {"too late to cancel": 1, "created": 1},
        "named messages in the log": 1,
        "results of handlers": 1,
        "tasks ended": {"SUCCESSFUL": 1},
        "batches": {"finished": 1},
        "members of batches": 3,
        "calls": {},
        "begun within limits": "0 in 0 processes, 0 at once",
        "messages left out by filters": 0,
        "of them counted": 0,
        "messages that could expire": 1,
        "expired": 1,
    }


def test_each_job_has_readers_of_its_own() -> None:
    assert {reader.topic for reader in JOB_READERS} == {TICKS, NAMED, FLEETING, MEMBERS, CALLED, REQUESTS, CROWDED}
    assert sum(1 / reader.every for reader in SCHEDULES.values()) > 2, "several ticks a second"
