"""Background tasks: each gets on with its work on every database, and one that does not is seen by everybody."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from django.db import connection

from sqlqueue import Reject, publish
from sqlqueue.admin.problems import problems
from sqlqueue.consumers import recorder
from sqlqueue.consumers.keeper import Keeper
from sqlqueue.consumers.recorder import Recorder
from sqlqueue.consumers.residents import FAILING, Collector, Replayer, Resident, Scheduler
from sqlqueue.consumers.tally import Tally
from sqlqueue.core.stream import Stream
from sqlqueue.log.replay import order
from sqlqueue.models import Activity, Message, PartitionLease, Replay, ScheduledMessage, SubscriberHeartbeat
from sqlqueue.observe import doctor, facts
from sqlqueue.observe.answers import health
from sqlqueue.observe.recent import recent_survey
from sqlqueue.observe.survey import survey
from tests.consuming import QUICK, Consuming
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
    Activity.objects.create(topic="t", consumer_group="default", minute=LONG_AGO, acked=1)
    return consuming


class TestEachGetsOn:
    """A turn that raises fails the test: the boundary that keeps others running is not in the way here."""

    def test_the_recorder(self, died: Consuming) -> None:
        subscriber = died.subscriber(residents=False)
        subscriber.run(drain=True)
        Activity.objects.exclude(minute=LONG_AGO).delete()
        Recorder("default", subscriber.dispatcher.tally).turn()
        [row] = Activity.objects.all()
        assert (row.minute > LONG_AGO, row.acked, row.dead, row.lag) == (True, 2, 1, 0)

    def test_the_collector(self, died: Consuming) -> None:
        died.drain()
        dead = {"subscriber": "long ago", "topic": "t", "consumer_group": "default", "expires_at": LONG_AGO}
        SubscriberHeartbeat.objects.create(**dead)
        Collector("default", 1.0, 1.0).turn()
        assert not Message.objects.filter(topic="t").exists()
        assert not SubscriberHeartbeat.objects.filter(subscriber="long ago").exists()

    def test_the_scheduler(self, died: Consuming) -> None:
        ScheduledMessage.objects.create(topic="t", payload="due")
        Scheduler("default", 1.0).turn()
        assert not ScheduledMessage.objects.exists()
        assert "due" in Message.objects.values_list("payload", flat=True)

    def test_the_replayer(self, died: Consuming) -> None:
        died.drain()
        order("default", "t")
        replayer = Replayer("default")
        while replayer.turn():
            pass
        assert [replay.state for replay in Replay.objects.all()] == ["done"]

    def test_the_keeper(self, died: Consuming) -> None:
        host = died.start()
        wait_until(lambda: PartitionLease.objects.filter(topic="t", holder=host.name).count() == 2)
        before = list(PartitionLease.objects.order_by("pk").values_list("valid_until", flat=True))
        host.subscriber._keeper.turn()
        after = list(PartitionLease.objects.order_by("pk").values_list("valid_until", flat=True))
        assert all(new > old for new, old in zip(after, before, strict=True))


RESIDENTS: dict[str, Callable[[Consuming], Resident]] = {
    "recorder": lambda consuming: Recorder("default", Tally()),
    "collector": lambda consuming: Collector("default", 1.0, 1.0),
    "scheduler": lambda consuming: Scheduler("default", 1.0),
    "replayer": lambda consuming: Replayer("default"),
    "keeper": lambda consuming: keeper_of(consuming),
}


def keeper_of(consuming: Consuming) -> Resident:
    consuming.consumer("t", lambda delivery: None)
    ownership = consuming.subscriber(residents=False).ownership
    return Keeper(ownership, 1.0, "", lambda: "", lambda: 0, lambda lost: None)


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("make", RESIDENTS.values(), ids=RESIDENTS.keys())
def test_one_whose_idle_connection_the_server_has_ended_fails_no_turn(
    consuming: Consuming, make: Callable[[Consuming], Resident]
) -> None:
    """A short `wait_timeout`, a proxy's, a KILL: a background task may rest for longer than a connection lasts."""
    resident = make(consuming)
    resident.interval = 3600.0
    used: list[int] = []
    done = threading.Semaphore(0)
    once = resident._guarded

    def guarded(do: Callable[[], bool | None]) -> bool:
        once(do)
        used.append(connection_id())
        done.release()
        return False

    resident._guarded = guarded  # type: ignore[method-assign]
    resident.start()
    try:
        for _ in range(3):
            assert done.acquire(timeout=30)
            assert resident._error == ""
            sessions().end(used[-1])
            resident.wake()
    finally:
        resident.stop()
    assert resident._error == ""  # not at its end either
    assert len(set(used)) == len(used)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_the_collector_trusts_no_horizon_from_before_a_lost_connection(consuming: Consuming) -> None:
    """The server may have been restarted, and may hand out offsets again."""
    collector = Collector("default", 1.0, 1.0)
    collector._guarded(collector.turn)
    before = collector._horizon
    collector._guarded(collector.turn)
    assert collector._horizon is before
    end_this_threads_connection()
    collector._guarded(collector.turn)
    assert collector._horizon is not before


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_loop_whose_idle_connection_the_server_has_ended_fails_no_turn(
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
    assert "event=turn_failed" not in caplog.text


def test_a_lost_lease_is_noticed_though_as_many_are_held_as_before(died: Consuming) -> None:
    subscriber = died.subscriber(residents=False)
    subscriber.start()
    try:
        subscriber.turn()
        lost: list[Stream] = []
        subscriber._keeper.lost = lost.extend
        one, other = subscriber.ownership.streams()
        subscriber.subscriptions[0].drop(one)  # as after an acquire whose answer was lost: held, and not known here
        lease = PartitionLease.objects.filter(topic="t", partition=other.address.partition)
        lease.update(holder="another", fencing_token=other.token + 1)
        PartitionLease.objects.create(
            topic="elsewhere", consumer_group="default", partition=0, holder=subscriber.name, fencing_token=1
        )
        before = other.deadline
        subscriber._keeper.turn()
        assert lost == [other]
        assert other.deadline == before
    finally:
        subscriber.close()


def failing() -> list[doctor.Finding]:
    findings = doctor.examine(facts.read("default", ()))
    return [one for one in findings if one.about == "background tasks" and one.level == doctor.ERROR]


def test_one_that_fails_again_and_again_is_reported_until_it_gets_on(
    consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = QUICK | {"HEARTBEAT_INTERVAL": 0.1}
    monkeypatch.setattr(recorder, "INTERVAL", 0.05)
    consuming.consumer("t", lambda delivery: None)
    host = consuming.start()
    assert failing() == []
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE sqlqueue_activity RENAME COLUMN minute TO away")
    try:
        wait_until(lambda: survey("default").failing)
        [finding] = failing()
        assert f"{host.name}: recorder: " in finding.text
        assert "minute" in finding.text
        assert "resident_failed" in finding.hint
        recent_survey.forget()
        answer = health(detailed=True)
        assert (answer.status, answer.body["passed"][0]["limit"]) == (503, "failing_tasks")
        shown = [problem.text for problem in problems(survey("default"))]
        assert any(f"A background task fails again and again: {host.name}: recorder: " in text for text in shown)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE sqlqueue_activity RENAME COLUMN away TO minute")
    wait_until(lambda: not survey("default").failing)
    recent_survey.forget()
    assert health(detailed=True).status == 200
    assert failing() == []


def test_one_that_failed_once_is_not_reported(died: Consuming) -> None:
    scheduler = Scheduler("default", 1.0)

    def fail() -> bool:
        raise ValueError("no")

    for _ in range(FAILING - 1):
        scheduler._guarded(fail)
    assert not scheduler.failing
    scheduler._guarded(scheduler.turn)
    scheduler._guarded(fail)
    assert not scheduler.failing
    for _ in range(FAILING):
        scheduler._guarded(fail)
    assert scheduler.failing == "scheduler: no"
