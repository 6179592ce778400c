"""Replays of dead letters: work of its own, in order, throttled, the first one as a trial."""

from datetime import timedelta

import pytest
from django.utils import timezone

from sqlqueue import ConfigurationError, Delivery, Reject, publish
from sqlqueue.log.replay import cancel, carry_out, order
from sqlqueue.models import Message, Replay
from sqlqueue.models.replay import CANCELLED, DONE, FAILED, RUNNING, TRIAL
from tests.consuming import Consuming

ALIAS = "default"


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


def state(replay: Replay) -> tuple[str, int, int]:
    replay.refresh_from_db()
    return replay.state, replay.done, replay.total


def test_a_fingerprint_is_replayed_in_order(consuming: Consuming, ledger: Ledger) -> None:
    ledger.broken = False
    replay = order(ALIAS, "t", group="g", fingerprint="no account for #")
    while carry_out(ALIAS):
        pass
    assert state(replay) == (DONE, 10, 10)
    consuming.drain()
    assert ledger.seen == list(range(10))
    assert Message.objects.dead_letters("g", "t").count() == 1


def test_the_rest_waits_for_the_trial(consuming: Consuming, ledger: Ledger) -> None:
    replay = order(ALIAS, "t", trial=True)
    carry_out(ALIAS)
    carry_out(ALIAS)
    assert state(replay) == (TRIAL, 1, 11)
    ledger.broken = False
    consuming.drain()
    assert ledger.seen == [0]
    while carry_out(ALIAS):
        pass
    assert state(replay) == (DONE, 11, 11)


def test_a_trial_that_fails_stops_it(consuming: Consuming, ledger: Ledger) -> None:
    replay = order(ALIAS, "t", trial=True)
    carry_out(ALIAS)
    consuming.drain()  # dies again
    carry_out(ALIAS)
    assert state(replay) == (FAILED, 1, 11)
    assert "died again" in replay.note
    assert Message.objects.dead_letters("g", "t").count() == 11


def test_a_rate_is_kept_and_an_order_can_be_cancelled(ledger: Ledger) -> None:
    replay = order(ALIAS, "t", rate=2)
    assert not carry_out(ALIAS)
    assert not carry_out(ALIAS)  # another process, within the same second
    assert state(replay) == (RUNNING, 2, 11)
    assert cancel(ALIAS, replay.pk)
    assert not cancel(ALIAS, replay.pk)
    carry_out(ALIAS)
    assert state(replay) == (CANCELLED, 2, 11)


def test_a_rate_below_one_a_second_waits_longer(ledger: Ledger) -> None:
    replay = order(ALIAS, "t", rate=0.01)
    carry_out(ALIAS)
    for seconds, done in ((50, 1), (101, 2)):
        Replay.objects.update(updated_at=timezone.now() - timedelta(seconds=seconds))
        carry_out(ALIAS)
        assert state(replay)[1] == done


def test_a_rate_between_two_whole_numbers_is_not_passed(ledger: Ledger) -> None:
    replay = order(ALIAS, "t", rate=1.9)
    carry_out(ALIAS)
    assert state(replay)[1] == 1


def test_consumers_carry_it_out(consuming: Consuming, ledger: Ledger) -> None:
    from tests.processes import wait_until

    ledger.broken = False
    replay = order(ALIAS, "t", offsets=list(Message.objects.dead_letters().values_list("offset", flat=True)[:3]))
    consuming.start()
    wait_until(lambda: state(replay)[0] == DONE and len(ledger.seen) == 3)


def test_what_makes_no_sense_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="no such dead letters"):
        order(ALIAS, "t", group="another")
    with pytest.raises(ConfigurationError, match="rate"):
        order(ALIAS, "t", rate=0)
