"""The retry budget of a group: it stops after too many failures, tries one message at a time, and goes on."""

import logging
import threading
import time
from typing import Any

import pytest

from sqlqueue import NewMessage, Postpone, publish_many
from sqlqueue.conf import settings as options
from sqlqueue.consumers.engine.throttle import EARLY
from sqlqueue.core.flow import checked_flow
from sqlqueue.database.log import Log
from sqlqueue.leases.limit_shares import Need, Times, take
from sqlqueue.log.groups import declare_flows, register
from sqlqueue.models import ConsumerGroup, DeliveryState
from sqlqueue.stats.attention import findings
from sqlqueue.stats.survey import survey
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]
WANTED = ["good", "expired", "postponed"]  # kinds


class Partner:
    """What a handler calls: it fails until it is well again, and notes how many calls are made at once."""

    def __init__(self) -> None:
        self.well, self.lock, self.answers = False, threading.Lock(), threading.Event()
        self.answers.set()
        self.calls = self.now = self.most = self.served = 0

    def call(self, delivery: Any) -> None:
        with self.lock:
            self.calls += 1
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self.answers.wait(60)
            if not self.well:
                raise ConnectionRefusedError("the partner is away")
            self.served += 1
        finally:
            with self.lock:
                self.now -= 1


def spent() -> bool:
    return survey(Log.of(options.DATABASE)).groups[0].budget_spent


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_it_stops_tries_one_message_at_a_time_and_goes_on(
    consuming: Consuming, caplog: pytest.LogCaptureFixture, batch: bool
) -> None:
    caplog.set_level(logging.INFO, "sqlqueue")
    partner = Partner()
    each = (lambda deliveries: [partner.call(one) for one in deliveries]) if batch else partner.call
    more = {"batch": True, "batch_size": 5} if batch else {}
    consuming.consumer("calls", each, ordering="none", backoff=0, max_attempts=None, retry_budget="9/s", **more)
    publish_many("calls", [{"n": n} for n in range(300)])
    consuming.start()
    consuming.start()
    wait_until(spent)
    assert "budget_spent" in {one.kind.name for one in findings(survey(Log.of(options.DATABASE)))}
    wait_until(lambda: not partner.now)
    opened = ConsumerGroup.objects.get()
    wait_until(lambda: ConsumerGroup.objects.get().trial_at > opened.trial_at)
    partner.most = 0
    trial = ConsumerGroup.objects.get()
    wait_until(lambda: ConsumerGroup.objects.get().trial_at > trial.trial_at)
    assert partner.most <= 1
    partner.well = True
    wait_until(lambda: partner.served == 300, message=lambda: f"{partner.served} of {partner.calls}")
    wait_until(lambda: not spent())
    events = [record.message.split()[0] for record in caplog.records if "retry_budget" in record.message]
    assert events[0] == "event=retry_budget_spent"
    assert events[-1] == "event=retry_budget_restored"


def test_a_process_that_has_spent_it_by_itself_stops_at_once(consuming: Consuming, settings: Any) -> None:
    """What was dispatched before still runs: as much as quick handlers may have in flight."""
    settings.SQLQUEUE = {**QUICK, "BALANCE_INTERVAL": 20.0, "LEASE_DURATION": 60.0}
    partner = Partner()
    consuming.consumer("calls", partner.call, ordering="none", backoff=60.0, retry_budget="20/m")
    publish_many("calls", [{"n": n} for n in range(4_000)])
    consuming.start()
    wait_until(spent)
    wait_until(lambda: not partner.now)
    assert 20 < partner.calls <= 20 + 2 * EARLY


def wait_for_trials(count: int) -> None:
    for _ in range(count):
        before = ConsumerGroup.objects.get().trial_at
        wait_until(lambda before=before: before != ConsumerGroup.objects.get().trial_at)


def test_for_two_of_the_times_between_trials_no_other_message_is_tried(consuming: Consuming, settings: Any) -> None:
    """There is a second between two trials. A trial that was not awaited any longer closes the budget all the same."""
    settings.SQLQUEUE = {**QUICK, "BALANCE_INTERVAL": 1.0}
    partner, began, gates = Partner(), [], [consuming.gate(), consuming.gate()]

    def call(delivery: Any) -> None:
        if partner.well:
            began.append(time.monotonic())
            if len(began) <= 2:
                gates[len(began) - 1].wait()
        partner.call(delivery)

    consuming.consumer("calls", call, ordering="none", backoff=0, max_attempts=None, retry_budget="9/s")
    publish_many("calls", [{"n": n} for n in range(300)])
    consuming.start()
    consuming.start()
    wait_until(spent)
    wait_for_trials(3)  # by then both know that it is spent
    wait_until(lambda: not partner.now)
    partner.well = True
    wait_until(lambda: len(began) == 2)
    assert began[1] - began[0] >= 2.0
    assert spent()
    gates[0].set()
    wait_until(lambda: partner.served == 299)
    wait_until(lambda: not spent())


def test_what_waits_is_charged_nothing(consuming: Consuming) -> None:
    partner = Partner()
    consuming.consumer("calls", partner.call, ordering="none", backoff=3_600, retry_budget="1/d")
    publish_many("calls", [{"n": n} for n in range(2_000)])
    consuming.start()
    wait_until(spent)
    wait_until(lambda: not partner.now)
    wait_until(lambda: DeliveryState.objects.filter(retry_count__gt=0).count() == partner.calls)
    assert partner.calls < 2_000


@pytest.mark.parametrize("kind", ["expired", "postponed", "filtered"])
def test_what_is_no_attempt_is_no_trial(consuming: Consuming, settings: Any, kind: str) -> None:
    """There is a second between two trials: twenty would take longer than this test waits."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "BALANCE_INTERVAL": 1.0}
    partner = Partner()

    def call(delivery: Any) -> None:
        if delivery.payload == "postponed":
            raise Postpone(delay=600)
        partner.call(delivery)

    consuming.consumer("calls", call, max_attempts=1, retry_budget="3/s", where={"headers.kind": WANTED})
    publish_many("calls", [NewMessage("first", headers={"kind": "good"})] * 4)
    consuming.start(threads=1)
    wait_until(spent)
    partner.well = True
    publish_many(
        "calls",
        [NewMessage(kind, headers={"kind": kind}, expires=0.001 if kind == "expired" else None) for _ in range(20)],
    )
    publish_many("calls", [NewMessage("good", headers={"kind": "good"})] * 3)
    wait_until(lambda: partner.served == 3, timeout=10, message=lambda: f"{partner.served} of {partner.calls}")
    wait_until(lambda: not spent())


def test_a_trial_that_hangs_puts_off_no_other_one_for_good(consuming: Consuming) -> None:
    gate, tried, partner = consuming.gate(), threading.Event(), Partner()

    def call(delivery: Any) -> None:
        if partner.well and not tried.is_set():
            tried.set()
            gate.wait()
        partner.call(delivery)

    options = {"ordering": "none", "backoff": 0, "max_attempts": None, "retry_budget": "9/s"}
    consuming.consumer("calls", call, **options, visibility_timeout=3600)
    publish_many("calls", range(50))
    consuming.start()
    wait_until(spent)
    wait_until(lambda: not partner.now)
    partner.well = True
    wait_until(lambda: partner.served == 49, timeout=20, message=lambda: f"{partner.served} of {partner.calls}")
    wait_until(lambda: not spent())


def test_a_handler_that_hangs_puts_off_no_trial_for_good(consuming: Consuming) -> None:
    gate, hangs, partner = consuming.gate(), threading.Event(), Partner()

    def call(delivery: Any) -> None:
        if delivery.payload == "hangs":
            hangs.set()
            gate.wait()
        else:
            partner.call(delivery)

    consuming.consumer(
        "calls", call, ordering="none", backoff=0, max_attempts=None, retry_budget="9/s", visibility_timeout=3600
    )
    consuming.start()
    publish_many("calls", ["hangs"])
    assert hangs.wait(30)
    publish_many("calls", ["other"] * 50)
    wait_until(spent)
    partner.well = True
    wait_until(lambda: partner.served == 50, timeout=20, message=lambda: f"{partner.served} of {partner.calls}")


TIMES = Times(ahead=10.0, yield_after=30.0, lasts=60.0)


def told(subscriber: str, **need: Any) -> tuple[bool, bool]:
    """Tell what a process needs; return whether the budget is spent, and whether it may try a message."""
    wants = Need(**{"demand": 1.0, "unused": 0, "running": 0, "wanted": 1, "held_back": True, **need})
    share = take(Log.of(options.DATABASE), subscriber, "default", "calls", wants, TIMES)
    assert share is not None
    return share.open, share.trial is not None


def test_one_process_tries_at_a_time() -> None:
    publish_many("calls", [{"n": 1}])
    register(Log.of(options.DATABASE), "default", "calls")
    declare_flows(Log.of(options.DATABASE), {("default", "calls"): checked_flow({"retry_budget": "5/h"}, [])})
    rows = ConsumerGroup.objects.all()
    assert told("a", failed=5) == (False, False)
    assert told("b", failed=1) == (True, False)
    rows.update(trial_at=rows.get().opened_at)  # the time of the trial has come
    assert told("a", running=1) == (True, False)  # what runs was dispatched before: it is no trial
    assert told("a", held_back=False) == (True, False)
    assert told("a") == (True, True)
    assert told("b") == (True, False)
    assert told("a", running=1, trial=True) == (True, False)  # it still runs
    assert told("a", trial=True, failed=1) == (True, False)
    rows.update(trial_at=rows.get().opened_at)
    assert told("b") == (True, True)
    assert told("b", trial=True, succeeded=True) == (False, False)
    assert rows.get().opened_at is None
    assert told("a", failed=5) == (False, False)


def test_a_trial_for_which_nothing_was_tried_is_due_again() -> None:
    publish_many("calls", [{"n": 1}])
    register(Log.of(options.DATABASE), "default", "calls")
    declare_flows(Log.of(options.DATABASE), {("default", "calls"): checked_flow({"retry_budget": "5/h"}, [])})
    rows = ConsumerGroup.objects.all()
    assert told("a", failed=6) == (True, False)
    rows.update(trial_at=rows.get().opened_at)
    assert told("a") == (True, True)
    unused = rows.get().trial_at
    assert told("b", unused_trial=rows.get().opened_at) == (True, False)  # that was an earlier one
    assert told("a", unused_trial=unused, held_back=False) == (True, False)
    assert told("b") == (True, True)
