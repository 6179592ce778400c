"""Pausing, resuming and running periodic schedules, and what people see of them."""

from datetime import timedelta
from typing import Any

import pytest

from sqlqueue.core.periodic import Recurrence, tick_id
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.ticks import publish_due
from sqlqueue.models import Message, PeriodicSchedule
from sqlqueue.operations.periodic import pause, remove, resume, run_now, schedules, upcoming
from tests.log.test_ticks import declared, ids, last_due, pass_by, publish_all, row, schedule, set_back
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)


class TestPausing:
    def test_no_tick_is_published_until_it_is_resumed(self) -> None:
        digests = declared(schedule())
        assert (pause(LOG, "job"), pause(LOG, "job")) == (True, False)
        set_back("job", last_due(60))
        assert (publish_all(digests), ids()) == (0, [])

    @pytest.mark.parametrize(("missed", "count"), [("last", 1), ("all", 61), ("skip", 0)])
    def test_what_fell_due_meanwhile_counts_as_missed(self, missed: str, count: int) -> None:
        digests, due = declared(schedule(missed=missed)), last_due(60)
        pause(LOG, "job")
        set_back("job", due - timedelta(hours=1))
        assert (resume(LOG, "job"), resume(LOG, "job")) == (True, False)
        publish_all(digests)
        assert ids() == [tick_id("job", due - timedelta(minutes=ago)) for ago in range(count - 1, -1, -1)]

    def test_a_resumed_schedule_goes_on(self) -> None:
        digests = declared(schedule(missed="skip"))
        pause(LOG, "job")
        resume(LOG, "job")
        due = last_due(60)
        set_back("job", due)
        publish_all(digests)
        assert ids() == [tick_id("job", due)]

    def test_a_pause_between_the_reading_and_the_publishing_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sqlqueue.log import ticks

        digests = declared(schedule())
        set_back("job", last_due(60))
        original = ticks._advance

        def paused(*arguments: Any) -> bool:
            PeriodicSchedule.objects.update(paused=True)
            return original(*arguments)

        monkeypatch.setattr(ticks, "_advance", paused)
        assert (publish_all(digests), ids()) == (0, [])

    def test_a_resume_between_the_reading_and_the_publishing_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has passed over what the publisher has read as due."""
        from sqlqueue.log import ticks

        digests = declared(schedule(missed="skip"))
        set_back("job", last_due(60))
        original = ticks._advance

        def resumed(*arguments: Any) -> bool:
            pause(LOG, "job")
            resume(LOG, "job")
            return original(*arguments)

        monkeypatch.setattr(ticks, "_advance", resumed)
        assert (publish_due(LOG, digests).published, ids()) == (0, [])

    @pytest.mark.parametrize("operation", [pause, remove, resume, run_now])
    def test_an_unknown_schedule_is_refused(self, operation: Any) -> None:
        declared(schedule("nightly"))
        with pytest.raises(ConfigurationError, match="Did you mean 'nightly'"):
            operation(LOG, "nightli")


class TestRunNow:
    def test_it_is_a_message_of_its_own(self) -> None:
        declared(schedule(group="g"))
        first, second = run_now(LOG, "job"), run_now(LOG, "job")
        assert first.id != second.id
        assert {"@run-" in one for one in ids()} == {True}
        message = Message.objects.first()
        assert message is not None
        assert (message.target_group, message.payload["schedule"]) == ("g", "job")

    def test_it_moves_no_tick_and_works_while_paused(self) -> None:
        digests, due = declared(schedule()), last_due(60)
        pause(LOG, "job")
        run_now(LOG, "job")
        assert len(ids()) == 1
        resume(LOG, "job")
        set_back("job", due)
        publish_all(digests)
        assert ids()[1:] == [tick_id("job", due)]


class TestRemoving:
    def test_one_that_no_process_has_is_gone(self) -> None:
        declared(schedule())
        set_back("job", last_due(60), attended=False)
        remove(LOG, "job")
        assert not PeriodicSchedule.objects.exists()

    def test_one_that_is_in_the_code_stays(self) -> None:
        declared(schedule())
        with pytest.raises(ConfigurationError, match="in the code of a running"):
            remove(LOG, "job")
        assert PeriodicSchedule.objects.exists()

    def test_one_that_a_clock_has_left_far_ahead_begins_anew(self) -> None:
        """The database's clock was a year ahead, and went back: until it is there again no tick is due."""
        digests = declared(schedule())
        pass_by(-365 * 86_400)
        assert publish_all(digests) == 0
        remove(LOG, "job")
        declared(schedule())
        due = last_due(60)
        set_back("job", due)
        publish_all(digests)
        assert ids() == [tick_id("job", due)]


class TestWhatPeopleSee:
    def test_states(self) -> None:
        digests = declared(*(schedule(name) for name in ("active", "paused", "refused", "undeclared")))
        pause(LOG, "paused")
        PeriodicSchedule.objects.filter(name="refused").update(refusal="no such topic")
        set_back("undeclared", last_due(60), attended=False)
        found = {one.name: one for one in schedules(LOG)}
        assert {one.state for one in found.values()} == set(digests)
        assert all(one.state == name for name, one in found.items())
        assert found["active"].next_tick == row("active").next_tick
        assert {found[name].next_tick for name in ("paused", "refused", "undeclared")} == {None}

    def test_a_definition_that_cannot_be_read_is_shown_with_the_reason(self) -> None:
        declared(schedule())
        PeriodicSchedule.objects.update(definition="{}")
        (found,) = schedules(LOG)
        assert "cannot be read" in found.refusal

    def test_upcoming_ticks_of_all_schedules_are_in_order(self) -> None:
        declared(schedule("a", 86_400), schedule("b", 43_200), schedule("c", 1e8))
        found = upcoming(LOG, 2)
        assert [one.schedule for one in found].count("a") == 2
        assert [one.schedule for one in found].count("b") == 4
        assert found == sorted(found)
        assert found[0].due == min(Recurrence(every=every).after(row("a").now) for every in (86_400, 43_200))

    def test_upcoming_ticks_are_bounded(self) -> None:
        declared(schedule("a", 1), schedule("b", 1))
        assert len(upcoming(LOG, 3660)) == 1_000
        assert {one.schedule for one in upcoming(LOG, 1, "a", most=10)} == {"a"}
