"""Which definition of a schedule is in effect: the newest process's, while processes of several versions run."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connections

from sqlqueue.core.periodic import ScheduleDefinition, tick_id
from sqlqueue.log.declarations import declare
from sqlqueue.models import PeriodicSchedule
from tests.log.test_ticks import ids, last_due, pass_by, publish_all, row, schedule, set_back
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

OLD, NEW = schedule(every=60, missed="all"), schedule(every=45, missed="all")


def stored() -> str:
    return PeriodicSchedule.objects.get(name="job").digest


def at(*definitions: ScheduleDefinition) -> Callable[[], bool]:
    """Return what a process of this code does now and then."""
    named = {one.name: one for one in definitions}
    digests = {name: one.digest for name, one in named.items()}

    def iteration() -> bool:
        publish_all(digests)
        return declare(LOG, named)

    return iteration


class TestADeployment:
    def test_the_newer_process_changes_the_definition_and_the_older_one_leaves_it(self) -> None:
        old, new = at(OLD), at(NEW)
        old(), new()
        for _ in range(3):
            assert stored() == NEW.digest
            pass_by(25)  # seconds: time to renew it
            old(), new()

    def test_an_old_process_that_starts_again_changes_nothing(self) -> None:
        at(OLD)(), at(NEW)()
        at(OLD)()
        assert stored() == NEW.digest

    def test_the_old_definition_returns_once_no_process_has_the_newer_one(self) -> None:
        old = at(OLD)
        old(), at(NEW)()
        pass_by(20)
        old()
        assert stored() == NEW.digest
        pass_by(11)
        old()
        assert stored() == OLD.digest

    def test_a_third_version_replaces_the_second(self) -> None:
        third = schedule(every=30)
        at(OLD)(), at(NEW)(), at(third)(), at(OLD)(), at(NEW)()
        assert stored() == third.digest

    def test_an_older_process_publishes_what_the_newer_definition_says(self) -> None:
        old = at(OLD)
        old(), at(NEW)()
        due = last_due(45)
        set_back("job", due)
        old()
        assert ids() == [tick_id("job", due)]

    def test_other_services_schedules_are_left(self) -> None:
        at(OLD)(), at(schedule("other"))()
        assert set(PeriodicSchedule.objects.values_list("name", flat=True)) == {"job", "other"}


class TestAChange:
    def test_what_fell_due_before_it_follows_the_old_definition_and_the_rest_the_new_one(self) -> None:
        at(OLD)()
        due = last_due(60)
        set_back("job", due - timedelta(minutes=2), attended=False)
        at(NEW)()
        assert ids() == [tick_id("job", due - timedelta(minutes=ago)) for ago in (2, 1, 0)]
        assert (stored(), row().ticked_to > due) == (NEW.digest, True)
        assert row().next_tick == NEW.recurrence.after(row().ticked_to)

    def test_a_new_cron_publishes_nothing_of_the_time_before_it(self) -> None:
        at(schedule(every=1e8))()
        pass_by(3600)
        at(schedule(every=1, missed="all"))()
        assert ids() == []

    def test_it_waits_for_the_old_definitions_ticks(self) -> None:
        at(OLD)()
        set_back("job", last_due(60), attended=False)
        assert not declare(LOG, {"job": NEW})
        assert stored() == OLD.digest

    def test_a_refused_definition_is_replaced_at_once(self) -> None:
        at(OLD)()
        set_back("job", last_due(60))
        PeriodicSchedule.objects.update(refusal="no such topic")
        assert declare(LOG, {"job": NEW})
        assert (stored(), row().refusal) == (NEW.digest, None)

    def test_a_paused_schedule_stays_paused(self) -> None:
        at(OLD)()
        PeriodicSchedule.objects.update(paused=True)
        at(NEW)()
        assert (stored(), row().paused) == (NEW.digest, True)

    def test_only_so_many_definitions_are_remembered(self) -> None:
        for every in range(100, 130):
            at(schedule(every=every))()
        assert len(row().superseded.split()) == 20


class TestRemoval:
    def test_a_schedule_that_no_process_has_stops_ticking(self) -> None:
        at(OLD, schedule("other"))()
        rest = at(schedule("other"))
        due = last_due(60)
        set_back("job", due, attended=False)
        rest()
        assert ids() == []

    def test_one_that_comes_back_publishes_what_it_missed(self) -> None:
        at(OLD)()
        due = last_due(60)
        set_back("job", due, attended=False)
        at(schedule("other"))()
        at(OLD)()
        assert ids() == [tick_id("job", due)]

    def test_one_whose_row_was_deleted_begins_anew(self) -> None:
        process = at(OLD)
        process()
        PeriodicSchedule.objects.all().delete()
        process()
        assert (ids(), stored()) == ([], OLD.digest)


class TestRenewal:
    def test_it_takes_no_statement_but_one_while_others_have_just_renewed_it(
        self, django_assert_num_queries: Callable[..., object]
    ) -> None:
        at(OLD)()
        with django_assert_num_queries(1):
            assert declare(LOG, {"job": OLD})

    def test_it_goes_on_while_a_process_has_the_definition(self) -> None:
        process = at(OLD)
        process()
        for _ in range(4):
            pass_by(25, columns=("attended_until",))
            process()
            assert row().attended

    def test_it_does_not_hide_that_ticks_were_missed(self) -> None:
        """A renewal before the missed ticks are decided would make late ones of them."""
        at(OLD)()
        set_back("job", last_due(60) - timedelta(hours=1), attended=False)
        declare(LOG, {"job": OLD})
        assert not row().attended

    def test_a_paused_and_a_refused_schedule_are_renewed(self) -> None:
        at(OLD, schedule("other"))()
        PeriodicSchedule.objects.filter(name="job").update(paused=True)
        PeriodicSchedule.objects.filter(name="other").update(refusal="no")
        for name in ("job", "other"):
            set_back(name, last_due(60), attended=False)
        declare(LOG, {"job": OLD, "other": schedule("other")})
        assert row("job").attended
        assert row("other").attended


def test_processes_that_start_together_store_each_schedule_once() -> None:
    named = {f"job{number}": schedule(f"job{number}") for number in range(20)}
    barrier, errors = threading.Barrier(4), []

    def starting() -> None:
        try:
            barrier.wait()
            while not declare(LOG, named):
                pass
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=starting) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert set(PeriodicSchedule.objects.values_list("name", flat=True)) == set(named)
