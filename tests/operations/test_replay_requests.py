"""Replays of dead letters: work of its own, in order, throttled, the first one as a trial."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from sqlqueue import ConfigurationError, Delivery, Reject, publish
from sqlqueue.log import groups
from sqlqueue.models import Message, Request, request
from sqlqueue.models.request import CANCELLED, DONE, FAILED, NEW, RUNNING, TRIAL
from sqlqueue.operations.replay_requests import request_replay
from sqlqueue.operations.requests import AT_ONCE, cancel, carry_out
from sqlqueue.operations.reschedule import republish
from tests.consuming import Consuming
from tests.factories import RequestFactory
from tests.logs import LOG
from tests.transactions import OpenTransaction


class Ledger:
    """A handler that can be mended."""

    def __init__(self) -> None:
        self.broken = True
        self.seen: list[int] = []

    def __call__(self, delivery: Delivery) -> None:
        if self.broken:
            raise Reject(f"no account for {delivery.payload}" if delivery.payload < 100 else "closed")
        self.seen.append(delivery.payload)


@pytest.fixture
def ledger(consuming: Consuming) -> Ledger:
    """A handler with ten dead letters of one kind and one of another."""
    ledger = Ledger()
    consuming.consumer("t", ledger, group="g")
    for number in [*range(10), 100]:
        publish("t", number, key="a")
    consuming.drain()
    assert Message.objects.dead_letters("g", "t").count() == 11
    return ledger


def state(replay: Request) -> tuple[str, int, int]:
    replay.refresh_from_db()
    return replay.state, replay.done, replay.total


def test_a_fingerprint_is_replayed_in_order(consuming: Consuming, ledger: Ledger) -> None:
    ledger.broken = False
    replay = request_replay(LOG, "t", group="g", fingerprint="no account for #")
    while carry_out(LOG):
        pass
    assert state(replay) == (DONE, 10, 10)
    consuming.drain()
    assert ledger.seen == list(range(10))
    assert Message.objects.dead_letters("g", "t").count() == 1


def test_the_rest_waits_for_the_trial(consuming: Consuming, ledger: Ledger) -> None:
    replay = request_replay(LOG, "t", trial=True)
    carry_out(LOG)
    carry_out(LOG)
    assert state(replay) == (TRIAL, 1, 11)
    ledger.broken = False
    consuming.drain()
    assert ledger.seen == [0]
    while carry_out(LOG):
        pass
    assert state(replay) == (DONE, 11, 11)


def test_a_trial_that_fails_stops_it(consuming: Consuming, ledger: Ledger) -> None:
    replay = request_replay(LOG, "t", trial=True)
    carry_out(LOG)
    consuming.drain()  # dies again
    carry_out(LOG)
    assert state(replay) == (FAILED, 1, 11)
    assert "died again" in replay.note
    assert Message.objects.dead_letters("g", "t").count() == 11


def test_a_rate_is_kept_and_an_order_can_be_cancelled(ledger: Ledger) -> None:
    replay = request_replay(LOG, "t", rate=2)
    assert not carry_out(LOG)
    assert not carry_out(LOG)  # another process, within the same second
    assert state(replay) == (RUNNING, 2, 11)
    assert cancel(LOG, replay.pk)
    assert not cancel(LOG, replay.pk)
    carry_out(LOG)
    assert state(replay) == (CANCELLED, 2, 11)


def test_a_rate_below_one_a_second_waits_longer(ledger: Ledger) -> None:
    replay = request_replay(LOG, "t", rate=0.01)
    carry_out(LOG)
    for seconds, done in ((50, 1), (101, 2)):
        Request.objects.update(updated_at=timezone.now() - timedelta(seconds=seconds))
        carry_out(LOG)
        assert state(replay)[1] == done


def test_a_rate_between_two_whole_numbers_is_not_passed(ledger: Ledger) -> None:
    replay = request_replay(LOG, "t", rate=1.9)
    carry_out(LOG)
    assert state(replay)[1] == 1


def test_consumers_carry_it_out(consuming: Consuming, ledger: Ledger) -> None:
    from tests.processes import wait_until

    ledger.broken = False
    replay = request_replay(LOG, "t", offsets=list(Message.objects.dead_letters().values_list("offset", flat=True)[:3]))
    consuming.start()
    wait_until(lambda: state(replay)[0] == DONE and len(ledger.seen) == 3)


def test_what_makes_no_sense_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="no such dead letters"):
        request_replay(LOG, "t", group="another")


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan"), 1e300, 1e-300, True, "3"])
def test_a_rate_that_no_process_could_keep_is_refused(ledger: Ledger, rate: Any) -> None:
    with pytest.raises(ConfigurationError, match="the rate must be messages a second, from"):
        request_replay(LOG, "t", rate=rate)
    assert not Request.objects.exists()


@pytest.fixture
def another(consuming: Consuming, ledger: Ledger) -> str:
    """Another topic, with one dead letter."""
    consuming.consumer("u", Ledger(), group="g")
    publish("u", 100)
    consuming.drain()
    return "u"


def carry_out_all() -> None:
    steps = 0
    while carry_out(LOG):
        steps += 1
        assert steps < 100, list(Request.objects.values())


def test_a_dead_letter_that_cannot_be_delivered_again_holds_up_nothing(
    consuming: Consuming, ledger: Ledger, another: str
) -> None:
    third = Message.objects.dead_letters("g", "t").order_by("offset")[2].offset
    publish("t", "in the way", key="a", id=f"replay:{third}", group="nobody")
    replay = request_replay(LOG, "t", group="g")
    other = request_replay(LOG, another)
    carry_out_all()
    assert state(replay) == (DONE, 10, 11)
    assert f"dead letter {third} was skipped: " in replay.note
    assert state(other) == (DONE, 1, 1)
    assert list(Message.objects.dead_letters("g", "t").values_list("offset", flat=True)) == [third]
    ledger.broken = False
    consuming.drain()
    assert ledger.seen == [0, 1, *range(3, 10), 100]


def test_an_order_that_is_wrong_itself_fails_with_its_reason(another: str) -> None:
    replay = request_replay(LOG, "t")
    Request.objects.update(rate=-1)  # as plain SQL, or an earlier version, may have left it
    other = request_replay(LOG, another)
    carry_out_all()
    assert state(replay) == (FAILED, 0, 11)
    assert "the rate must be" in replay.note
    assert state(other) == (DONE, 1, 1)


def test_a_reason_that_is_too_long_is_noted_as_far_as_it_goes_and_logged_whole(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request, "NOTE_LENGTH", 20)
    replay = request_replay(LOG, "t")
    Request.objects.update(rate=-1)
    carry_out_all()
    assert state(replay)[0] == FAILED
    assert replay.note == "the rate must be messages a second"[:20]
    assert "the rate must be messages a second, from" in caplog.text


def test_every_request_has_its_step_however_many_wait(another: str) -> None:
    first = request_replay(LOG, "t", trial=True)
    carry_out(LOG)  # and waits for its trial
    fields = {"state": TRIAL, "options": {"trial": True}, "through": first.through, "total": 1}
    RequestFactory.insert(AT_ONCE, **fields, trial_offset=Request.objects.get().trial_offset)
    last = request_replay(LOG, another)
    carry_out_all()
    assert state(last)[0] == DONE


def test_a_trial_for_a_group_that_was_removed_fails(consuming: Consuming, ledger: Ledger) -> None:
    replay = request_replay(LOG, "t", trial=True)
    carry_out(LOG)
    groups.remove(LOG, "g", "t")
    carry_out(LOG)
    assert state(replay) == (FAILED, 1, 11)
    assert "group g is not registered any more" in replay.note


def test_dead_letters_of_a_group_that_was_removed_stay_and_hold_up_nothing(
    consuming: Consuming, ledger: Ledger, another: str
) -> None:
    """As messages they would be for a group without consumers, and be collected unread."""
    replay = request_replay(LOG, "t")
    groups.remove(LOG, "g", "t")
    other = request_replay(LOG, another)
    carry_out_all()
    assert state(replay) == (FAILED, 0, 11)
    assert "group g of topic t is not registered any more" in replay.note
    assert Message.objects.dead_letters("g", "t").count() == 11
    assert state(other) == (DONE, 1, 1)
    with pytest.raises(ConfigurationError, match="group g of topic t is not registered any more"):
        request_replay(LOG, "t", group="g")


def test_of_several_groups_those_that_are_left_get_theirs(consuming: Consuming, ledger: Ledger) -> None:
    consuming.consumer("t", ledger, group="gone")
    consuming.drain()
    groups.remove(LOG, "gone", "t")
    replay = request_replay(LOG, "t")
    carry_out_all()
    assert state(replay) == (DONE, 11, 22)
    assert "group gone of topic t is not registered any more" in replay.note
    assert not Message.objects.dead_letters("g", "t").exists()
    assert Message.objects.dead_letters("gone", "t").count() == 11


def test_an_order_whose_offsets_are_none_fails_and_holds_up_nothing(another: str) -> None:
    replay = request_replay(LOG, "t")
    Request.objects.update(options={"offsets": {"as": "plain SQL may have left them"}})
    other = request_replay(LOG, another)
    carry_out_all()
    assert state(replay) == (FAILED, 0, 11)
    assert "not a list of integers" in replay.note
    assert state(other) == (DONE, 1, 1)


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("first", ["offset", "-offset"])
def test_what_another_has_locked_is_waited_for(consuming: Consuming, ledger: Ledger, first: str) -> None:
    dead_letters = Message.objects.dead_letters("g", "t").order_by(first)
    replay = request_replay(LOG, "t")
    with OpenTransaction() as person:
        person.do(lambda: dead_letters.select_for_update()[0])
        carry_out_all()
        assert state(replay) == (RUNNING, 10, 11)
    carry_out_all()
    assert state(replay) == (DONE, 11, 11)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_no_trial_is_left_out_since_all_are_locked(consuming: Consuming, ledger: Ledger) -> None:
    replay = request_replay(LOG, "t", trial=True)
    with OpenTransaction() as person:
        person.do(lambda: list(Message.objects.dead_letters("g", "t").select_for_update()))
        carry_out_all()
        assert state(replay) == (NEW, 0, 11)
    carry_out_all()
    assert state(replay) == (TRIAL, 1, 11)


def test_a_trial_that_died_and_was_collected_has_failed(consuming: Consuming, ledger: Ledger) -> None:
    replay = request_replay(LOG, "t", trial=True)
    carry_out_all()
    consuming.drain()  # it dies again
    replay.refresh_from_db()
    Message.objects.filter(offset=replay.trial_offset).delete()
    carry_out_all()
    assert state(replay) == (FAILED, 1, 11)
    assert "died again" in replay.note


class TestWhatPythonCanReadAndNotWriteAgain:
    """What came by plain SQL, as JavaScript's JSON.stringify gives it, is copied as it stands."""

    @pytest.fixture(params=['"\\ud83d"', "1e999", '{"a": [1e999]}'])
    def strange(self, consuming: Consuming, request: pytest.FixtureRequest) -> list[Any]:
        """A dead letter with a strange payload; what its handler gets from now on."""
        seen: list[Any] = []
        broken = [True]

        def handle(delivery: Delivery) -> None:
            if broken:
                broken.clear()
                raise Reject("no")
            seen.append(delivery.payload)

        consuming.consumer("t", handle, group="g")
        text = "INSERT INTO sqlqueue_scheduled_message (topic, payload) VALUES ('t', %s)"
        try:
            with connection.cursor() as cursor:
                cursor.execute(text, [request.param])
        except Exception as error:
            pytest.skip(f"{connection.display_name} has no such JSON: {error}")
        consuming.drain()
        if not Message.objects.dead_letters("g", "t").exists():
            pytest.skip(f"{connection.display_name} has no such JSON")
        return seen

    def test_a_dead_letter_is_replayed(self, consuming: Consuming, strange: list[Any]) -> None:
        replay = request_replay(LOG, "t")
        carry_out_all()
        assert state(replay) == (DONE, 1, 1)
        assert not replay.note
        consuming.drain()
        assert len(strange) == 1

    def test_a_message_is_republished(self, consuming: Consuming, strange: list[Any]) -> None:
        assert republish("t", "g", list(Message.objects.filter(topic="t").values_list("offset", flat=True))) == 1
        consuming.drain()
        assert len(strange) == 1
