"""Background tasks: each gets on with its work on every database, and one that does not is seen by everybody."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from sqlqueue import Reject, publish
from sqlqueue.consumers.background import duties
from sqlqueue.consumers.background.duties import RESERVE, CollectorTask, OutcomeCounter, StatsRecorder
from sqlqueue.consumers.background.lease_renewer import LeaseRenewer
from sqlqueue.consumers.background.task import FAILING, SELDOM, BackgroundTask
from sqlqueue.consumers.engine import subscriber
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.contrib.batches.effect import MEMBERS
from sqlqueue.contrib.batches.models import Batch
from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.partition.ref import HeldLease, PartitionRef
from sqlqueue.leases.heartbeat import Shown
from sqlqueue.log.schedule import move_due
from sqlqueue.management import doctor
from sqlqueue.models import (
    Activity,
    Duty,
    Message,
    PartitionLease,
    Request,
    ScheduledMessage,
    SubscriberHeartbeat,
)
from sqlqueue.models.request import REPLAY
from sqlqueue.monitoring.responses import health
from sqlqueue.operations.replay_requests import request_replay
from sqlqueue.operations.requests import INTERVAL, carry_out
from sqlqueue.stats.attention import findings
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.findings import ERROR
from sqlqueue.stats.survey import survey
from tests.consuming import QUICK, Consuming
from tests.factories import ActivityFactory, PartitionLeaseFactory, ScheduledMessageFactory, SubscriberHeartbeatFactory
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.processlist import end_this_threads_connection, sessions
from tests.servers.session import connection_id

LONG_AGO = datetime.now(timezone.utc) - timedelta(days=30)


@pytest.fixture
def died(consuming: Consuming, settings) -> Consuming:
    """A group that has settled messages, of which one has died, and an old minute's figures."""
    settings.SQLQUEUE = QUICK | {"TOPICS": {"t": {"partitions": 2, "retention": 0.0}}}

    def handle(delivery) -> None:
        if delivery.payload == "wrong":
            raise Reject("wrong")

    consuming.consumer("t", handle)
    for payload in ("right", "wrong", "right"):
        publish("t", payload)
    ActivityFactory(consumer_group="default", minute=LONG_AGO, acked=1)
    return consuming


class TestEachGetsOn:
    """An iteration that raises fails the test: the boundary that keeps others running is not in the way here."""

    def test_the_stats_recorder(self, died: Consuming) -> None:
        subscriber = died.subscriber(background_tasks=False)
        subscriber.run(drain=True)
        Activity.objects.exclude(minute=LONG_AGO).delete()
        StatsRecorder(LOG, subscriber.settler.outcome_counter).run_once()
        [row] = Activity.objects.all()
        assert (row.minute > LONG_AGO, row.acked, row.dead, row.lag) == (True, 2, 1, 0)

    def test_the_collector(self, died: Consuming) -> None:
        died.drain()
        SubscriberHeartbeatFactory(subscriber="long ago", consumer_group="default", beat_at=LONG_AGO)
        Duty.objects.update(began_at=LONG_AGO)
        CollectorTask(LOG, 1.0, 1.0).run_once()
        assert not Message.objects.filter(topic="t").exists()
        assert not SubscriberHeartbeat.objects.filter(subscriber="long ago").exists()

    def test_the_scheduler(self, died: Consuming) -> None:
        ScheduledMessageFactory(payload="due")
        move_due(LOG)
        assert not ScheduledMessage.objects.exists()
        assert "due" in Message.objects.values_list("payload", flat=True)

    def test_the_replay_task(self, died: Consuming) -> None:
        died.drain()
        request_replay(LOG, "t")
        while carry_out(LOG):
            pass
        assert [replay.state for replay in Request.objects.all()] == ["done"]

    def test_the_lease_renewer(self, died: Consuming) -> None:
        host = died.start()
        wait_until(lambda: PartitionLease.objects.filter(topic="t", holder=host.name).count() == 2)
        before = list(PartitionLease.objects.order_by("pk").values_list("valid_until", flat=True))
        host.subscriber._lease_renewer.run_once()
        after = list(PartitionLease.objects.order_by("pk").values_list("valid_until", flat=True))
        assert all(new > old for new, old in zip(after, before, strict=True))


RESIDENTS: dict[str, Callable[[Consuming], BackgroundTask]] = {
    "stats-recorder": lambda consuming: StatsRecorder(LOG, OutcomeCounter()),
    "collector": lambda consuming: CollectorTask(LOG, 1.0, 1.0),
    "scheduler": lambda consuming: BackgroundTask(LOG, "scheduler", 1.0, lambda: move_due(LOG) > 0),
    "requests": lambda consuming: BackgroundTask(LOG, "requests", 1.0, lambda: carry_out(LOG)),
    "lease-renewer": lambda consuming: lease_renewer_of(consuming),
}


def lease_renewer_of(consuming: Consuming) -> BackgroundTask:
    consuming.consumer("t", lambda delivery: None)
    ownership = consuming.subscriber(background_tasks=False).ownership
    return LeaseRenewer(ownership, 1.0, Shown, lambda lost: None, Liveness())


def test_one_of_those_that_serve_the_same_looks_often_and_the_others_rarely(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look for an operator's request while there is one that is not done."""
    monkeypatch.setattr(subscriber, "carry_out", lambda log: False)
    consuming.consumer("t", lambda delivery: None)
    hosts = [consuming.start() for _ in range(3)]

    def intervals() -> list[float]:
        tasks = (task for host in hosts for task in host.subscriber._background_tasks if task.name == "requests")
        return sorted(task.interval for task in tasks)

    wait_until(lambda: intervals() == [SELDOM] * 3)
    Request.objects.create(kind=REPLAY, topic="t", options={}, through=0)
    often, rarely = INTERVAL, float(RESERVE * INTERVAL)
    wait_until(lambda: intervals() == [often, rarely, rarely], message=lambda: str(intervals()))
    [first] = [host for host in hosts if not host.subscriber.ownership.balancer.in_reserve]
    hosts.remove(first)
    first.stop()
    wait_until(lambda: intervals() == [often, rarely])


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("make", RESIDENTS.values(), ids=RESIDENTS.keys())
@pytest.mark.session
def test_one_whose_idle_connection_the_server_has_ended_fails_no_iteration(
    consuming: Consuming, make: Callable[[Consuming], BackgroundTask]
) -> None:
    """A short `wait_timeout`, a proxy's, a KILL: a background task may rest for longer than a connection lasts."""
    task = make(consuming)
    task.interval = 3600.0
    used: list[int] = []
    done = threading.Semaphore(0)
    once = task._guarded

    def guarded(do: Callable[[], bool | None]) -> bool:
        once(do)
        used.append(connection_id())
        done.release()
        return False

    task._guarded = guarded  # type: ignore[method-assign]
    task.start()
    try:
        for _ in range(3):
            assert done.acquire(timeout=30)
            assert task.trouble._error == ""
            sessions().end(used[-1])
            task.wake()
    finally:
        task.stop()
    assert task.trouble._error == ""  # not at its end either
    assert len(set(used)) == len(used)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_the_collector_trusts_no_horizon_from_before_a_lost_connection(consuming: Consuming) -> None:
    """The server may have been restarted, and may assign offsets again."""
    collector = CollectorTask(LOG, 1.0, 1.0)
    collector._guarded(collector.run_once)
    before = collector._horizon
    collector._guarded(collector.run_once)
    assert collector._horizon is before
    end_this_threads_connection()
    collector._guarded(collector.run_once)
    assert collector._horizon is not before


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_loop_whose_idle_connection_the_server_has_ended_fails_no_iteration(
    consuming: Consuming, settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.SQLQUEUE = QUICK | {"IDLE_POLL_INTERVAL": 3600.0, "BALANCE_INTERVAL": 3600.0}
    seen: list[object] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    host = consuming.start()
    wait_until(lambda: host.subscriber._pause > 1.5)  # it doubles while there is nothing to do
    for session in sessions().others():
        sessions().end(session)
    publish("t", 1)
    wait_until(lambda: seen)
    assert "event=iteration_failed" not in caplog.text


def test_a_lost_lease_is_noticed_though_as_many_are_held_as_before(died: Consuming) -> None:
    subscriber = died.subscriber(background_tasks=False)
    subscriber.start()
    try:
        subscriber.run_once()
        lost: list[HeldLease] = []
        subscriber._lease_renewer.lost = lost.extend
        one, other = subscriber.ownership.assigned_partitions()
        subscriber.subscriptions[0].drop(one)  # as after an acquire whose answer was lost: held, and not known here
        lease = PartitionLease.objects.filter(topic="t", partition=other.ref.partition)
        lease.update(holder="another", fencing_token=other.token + 1)
        PartitionLeaseFactory(topic="elsewhere", consumer_group="default", holder=subscriber.name, fencing_token=1)
        before = other.lease.deadline
        subscriber._lease_renewer.run_once()
        assert lost == [other.lease]
        assert other.lease.deadline == before
    finally:
        subscriber.close()


def failing() -> list[doctor.Diagnosis]:
    examined = doctor.examine(doctor.Diagnostics(LOG, ()))
    return [one for one in examined if one.about == "background tasks" and one.level == ERROR]


def test_one_that_fails_again_and_again_is_reported_until_it_gets_on(
    consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = QUICK | {"HEARTBEAT_INTERVAL": 0.1}
    monkeypatch.setattr(duties, "EFFECTS_INTERVAL", 0.05)
    Batch.objects.create(id="open", callbacks={})
    consuming.consumer("t", lambda delivery: None)
    host = consuming.start()
    assert failing() == []
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE sqlqueue_batch RENAME COLUMN deadline_at TO away")
    try:
        wait_until(lambda: survey(LOG).failing)
        [finding] = failing()
        assert f"{host.name}: effects: " in finding.text
        assert "deadline" in finding.text
        assert "background_task_failed" in finding.hint
        recent_survey.forget()
        answer = health(detailed=True)
        assert (answer.status, answer.body["passed"][0]["limit"]) == (503, "failing_tasks")
        shown = [one.text for one in findings(survey(LOG))]
        assert any(f"A background task fails again and again: {host.name}: effects: " in text for text in shown)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE sqlqueue_batch RENAME COLUMN away TO deadline_at")
    wait_until(lambda: not survey(LOG).failing)
    recent_survey.forget()
    assert health(detailed=True).status == 200
    assert failing() == []


def test_one_that_failed_once_is_not_reported(died: Consuming) -> None:
    scheduler = BackgroundTask(LOG, "scheduler", 1.0)

    def fail() -> bool:
        raise ValueError("no")

    for _ in range(FAILING - 1):
        scheduler._guarded(fail)
    assert not scheduler.trouble.failing
    scheduler._guarded(scheduler.run_once)
    scheduler._guarded(fail)
    assert not scheduler.trouble.failing
    for _ in range(FAILING):
        scheduler._guarded(fail)
    assert scheduler.trouble.failing == "scheduler: no"


def test_one_that_fails_again_and_again_tries_another_connection(died: Consuming) -> None:
    """A node that has lost its cluster lets no statement through, and closes no connection."""
    scheduler = BackgroundTask(LOG, "scheduler", 1.0)

    def fail() -> bool:
        connection.cursor().execute("SELECT a_column FROM no_table")
        return False

    for failures in range(1, FAILING + 1):
        connection.ensure_connection()
        before = connection.connection
        scheduler._guarded(fail)
        assert (connection.connection is before) is (failures < FAILING)


def test_a_look_that_lasts_rests(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    now = [1000.0]

    def look(log: Any, writes: Any) -> bool:
        looks.append(now[0])
        now[0] += 3.0
        return True

    monkeypatch.setattr(type(MEMBERS), "committed", lambda effect, log, writes: look(log, writes))
    monkeypatch.setattr(duties, "time", SimpleNamespace(monotonic=lambda: now[0]))
    task = duties.EffectTask(LOG, lambda: False)
    for passed in (0.0, 0.0, 29.0, 1.0):
        now[0] += passed
        task.run_once()
    assert looks == [1000.0, 1033.0]


def test_what_is_committed_all_the_time_does_not_keep_effects_from_looking(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(type(MEMBERS), "committed", lambda effect, log, writes: bool(seen.append(len(writes))))
    task = duties.EffectTask(LOG, lambda: False)
    write = EffectWrite(HeldLease(PartitionRef("g", "t", 0, 0), 1, 1), 1, 1, MEMBERS, True, "{}")
    task.tell_of([write, write])
    task.run_once()
    assert seen == [2, 0]
    assert task.idle
