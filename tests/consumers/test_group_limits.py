"""Limits of a group: over all its processes, without an attempt for what waits, and changed while they run."""

import threading
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue import publish_many
from sqlqueue.conf import settings as options
from sqlqueue.consumers.engine.limiter import GroupLimiter
from sqlqueue.core.flow import checked_flow
from sqlqueue.core.outcomes import EXPIRED, POSTPONED, RETRIED, UNSTARTED, Outcome
from sqlqueue.core.partition.ref import HeldLease, PartitionRef
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database.log import Log
from sqlqueue.log.groups import override_flow
from sqlqueue.models import DeliveryState, LimitShare
from sqlqueue.stats.survey import survey
from tests.consumer_processes import holders
from tests.consumers.test_in_doubt import leave_in_flight
from tests.consuming import QUICK, Consuming
from tests.factories import MessageValueFactory
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
GROUP_TOPIC = {"group": "default", "topic": "calls"}


def attempt() -> Attempt:
    return Attempt(HeldLease(PartitionRef("default", "calls", 0), 1, 1), MessageValueFactory(), 1)


class AtWork:
    """A handler that knows how many of it run at once; `most` is the highest number."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate, self.lock = gate, threading.Lock()
        self.now = self.most = self.done = 0

    def __call__(self, delivery: Any) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.gate.wait()
        with self.lock:
            self.now -= 1
            self.done += 1


def limited() -> bool:
    return survey(Log.of(options.DATABASE)).groups[0].limited


def test_no_more_handlers_run_at_once_than_the_limit_in_several_processes(consuming: Consuming) -> None:
    gate = consuming.gate()
    work = AtWork(gate)
    consuming.consumer("calls", work.__call__, concurrency_limit=3, ordering="none")
    publish_many("calls", [{"n": n} for n in range(40)])
    consuming.start()
    consuming.start()
    wait_until(lambda: work.now == 3)
    wait_until(limited)
    shares = LimitShare.objects.alive().values_list("slots", flat=True)
    assert sum(shares) <= 3
    assert not DeliveryState.objects.filter(retry_count__gt=0).exclude(in_flight=0).count() > 3
    gate.set()
    wait_until(lambda: work.done == 40)
    assert work.most == 3
    wait_until(lambda: not limited())


def test_a_single_slot_goes_from_process_to_process(consuming: Consuming) -> None:
    work = AtWork(consuming.gate())
    work.gate.set()
    consuming.consumer("calls", work.__call__, concurrency_limit=1, ordering="none")
    hosts = [consuming.start(), consuming.start()]
    wait_until(lambda: set(holders("calls").values()) == {2})
    publish_many("calls", [{"n": n} for n in range(40)])
    wait_until(lambda: work.done == 40)
    assert work.most == 1
    wait_until(lambda: sum(host.subscriber.settled for host in hosts) == 40)
    assert all(host.subscriber.settled for host in hosts)


def test_what_waits_for_its_token_is_charged_nothing_and_goes_on_when_the_limit_is_lifted(consuming: Consuming) -> None:
    attempts: list[int] = []
    consuming.consumer("calls", lambda delivery: attempts.append(delivery.attempt), rate_limit="1/d")
    publish_many("calls", [{"n": n} for n in range(20)])
    consuming.start()
    wait_until(lambda: attempts == [1])
    wait_until(limited)
    assert survey(Log.of(options.DATABASE)).groups[0].lag >= 19
    assert not DeliveryState.objects.exclude(acked=True).exists()
    override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"rate_limit": None})
    wait_until(lambda: attempts == [1] * 20)


def test_a_rate_holds_over_several_processes(consuming: Consuming) -> None:
    done: list[int] = []
    consuming.consumer("calls", lambda delivery: done.append(1), rate_limit="20/d", ordering="none")
    publish_many("calls", [{"n": n} for n in range(30)])
    hosts = [consuming.start() for _ in range(3)]
    wait_until(lambda: len(done) == 1)
    wait_until(lambda: LimitShare.objects.alive().filter(held_back=True).count() == len(hosts))
    assert len(done) == 1  # the bucket of a slow rate holds one
    override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"rate_limit": "1000/s"})
    wait_until(lambda: len(done) == 30)


@pytest.mark.parametrize("batch", [True, False], ids=["batch", "single"])
def test_a_limited_group_sleeps_and_the_others_of_its_process_go_on(consuming: Consuming, batch: bool) -> None:
    consuming.consumer("calls", lambda given: None, rate_limit="1/d", batch=batch)
    free: list[int] = []
    consuming.consumer("free", lambda delivery: free.append(1))
    publish_many("calls", [{"n": n} for n in range(20)])
    host = consuming.start()
    wait_until(limited)
    publish_many("free", [{"n": n} for n in range(20)])
    wait_until(lambda: len(free) == 20)
    assert sum(1 for each in host.subscriber.subscriptions if each.limiter) == 1
    wait_until(lambda: host.subscriber._sleep(host.subscriber.ownership.assigned_partitions()) > 0)


def test_a_batch_is_as_large_as_the_tokens_allow(consuming: Consuming) -> None:
    sizes: list[int] = []
    consuming.consumer("calls", lambda deliveries: sizes.append(len(deliveries)), rate_limit="1/d", batch=True)
    publish_many("calls", [{"n": n} for n in range(20)])
    consuming.start()
    wait_until(lambda: sizes and limited())
    assert sizes == [1]


@pytest.mark.parametrize("limit", [{"rate_limit": "20/s"}, {"concurrency_limit": 2}], ids=["rate", "concurrency"])
def test_what_a_killed_process_had_in_flight_is_delivered_though_nothing_else_waits(
    consuming: Consuming, settings: Any, limit: dict[str, Any]
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    publish_many("calls", range(3))
    leave_in_flight("calls")
    done: list[int] = []
    consuming.consumer("calls", lambda delivery: done.append(delivery.payload), group="g", **limit)
    consuming.start()
    wait_until(lambda: sorted(done) == [0, 1, 2])


@pytest.mark.once
def test_a_group_with_nothing_to_do_asks_for_nothing(django_assert_num_queries: Any) -> None:
    flow = checked_flow({"rate_limit": "10/s", "concurrency_limit": 2, "retry_budget": "5/m"}, [])
    limiter = GroupLimiter(Log.of(options.DATABASE), "default", "calls", flow, batch=False)
    with django_assert_num_queries(0):
        for now in range(0, 1_000, 100):
            limiter.renew("idle", [], float(now))


@pytest.mark.once
def test_a_group_that_is_gone_is_not_asked_for_again_and_again_because_it_fails(
    django_assert_num_queries: Any,
) -> None:
    flow = checked_flow({"retry_budget": "1/d"}, [])
    limiter = GroupLimiter(Log.of(options.DATABASE), "gone", "calls", flow, batch=False)
    for _ in range(5):
        limiter.finished(attempt(), Outcome(RETRIED))
    limiter.renew("one", [], 100.0)
    with django_assert_num_queries(0):
        for number in range(10):
            limiter.renew("one", [], 100.0 + number / 1_000)


@pytest.mark.once
def test_what_is_too_late_for_its_handler_gives_its_token_back() -> None:
    limiter = GroupLimiter(LOG, **GROUP_TOPIC, flow=checked_flow({"rate_limit": "1/h"}, []), batch=False)
    limiter._stock.draw(1, 0.0, 0.0, 10.0)
    late = attempt()
    limiter.started([Execution(late.lease, [late])])
    assert limiter.messages(0.0) == 0
    limiter.finished(late, EXPIRED)
    assert limiter.messages(0.0) == 1
    limiter.finished(late, EXPIRED)
    assert limiter.messages(0.0) == 1, "one of an earlier draw is not given back to this one"


@pytest.mark.once
@pytest.mark.parametrize("outcome", [UNSTARTED, EXPIRED, Outcome(POSTPONED)])
def test_in_the_place_of_what_is_no_attempt_another_message_is_tried(outcome: Outcome) -> None:
    limiter = GroupLimiter(LOG, **GROUP_TOPIC, flow=checked_flow({"retry_budget": "1/h"}, []), batch=False)
    limiter._open, limiter._trial, limiter._deadline = True, timezone.now(), 10.0
    tried = attempt()
    limiter.started([Execution(tried.lease, [tried])])
    assert limiter.messages(0.0) == 0
    limiter.finished(tried, outcome)
    assert limiter.messages(0.0) == 1
