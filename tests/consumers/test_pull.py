"""subscribe(): the engine as a pull loop; the receiver settles each delivery."""

import threading
import time
from itertools import islice
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction

from sqlqueue import (
    ConfigurationError,
    InvalidMessage,
    InvalidResult,
    LeaseLost,
    NewMessage,
    asubscribe,
    get_status,
    publish,
    publish_many,
    subscribe,
)
from sqlqueue.consumers.engine.loop import Loop
from sqlqueue.log.groups import revoke
from sqlqueue.models import DeliveryState, Message, PartitionLease, Result, SubscriberHeartbeat
from sqlqueue.operations.move import move
from sqlqueue.stats.survey import survey
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming, seconds_until_due, states, watermark
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.processlist import end_this_threads_connection
from tests.servers.session import connection_id

SOON, PATIENCE = 0.4, 60


def received(count: int, **options: object) -> list[object]:
    """Receive and ack so many deliveries, however long they take, and whatever else comes soon after them."""
    found = []
    with subscribe("t", timeout=PATIENCE if count else SOON, **options) as deliveries:
        for delivery in deliveries:
            found.append(delivery.payload)
            delivery.ack()
            if len(found) >= count:
                deliveries._timeout = SOON
    return found


def test_a_heavy_payload_can_be_read_after_the_ack(consuming: Consuming) -> None:
    publish("t", "x" * 5_000, key="a")
    publish("t", "next", key="a")
    with subscribe("t", timeout=PATIENCE) as deliveries:
        first = next(iter(deliveries))
        first.ack()
        assert next(iter(deliveries)).payload == "next"
    assert first.payload == "x" * 5_000


def test_what_is_acked_never_comes_again(consuming: Consuming) -> None:
    for number in range(5):
        publish("t", number, key="a")
    assert received(5) == [0, 1, 2, 3, 4]
    assert received(0) == []


def test_it_waits_for_what_comes_later(consuming: Consuming) -> None:
    with subscribe("t", timeout=PATIENCE) as deliveries:
        each = iter(deliveries)
        publish("t", 1)
        first = next(each)
        first.ack()
        publish("t", 2)
        assert next(each).payload == 2


def test_as_many_as_a_batch_may_be_unsettled_at_once(consuming: Consuming) -> None:
    publish_many("t", range(30))
    with subscribe("t", timeout=PATIENCE, batch_size=10) as deliveries:
        held = list(islice(deliveries, 10))
        deliveries._timeout = SOON
        assert list(deliveries) == []
        for delivery in held:
            delivery.ack()
        deliveries._timeout = PATIENCE
        assert len(list(islice(deliveries, 10))) == 10


def test_it_ends_when_nothing_has_come_for_the_timeout(consuming: Consuming) -> None:
    began = time.monotonic()
    assert received(0) == []
    assert time.monotonic() - began >= SOON


def test_the_next_of_a_key_comes_when_the_first_is_acked(consuming: Consuming) -> None:
    for number in range(2):
        publish("t", number, key="a")
    publish("t", "other", key="b")
    with subscribe("t", timeout=PATIENCE) as deliveries:
        first_two = {delivery.payload: delivery for delivery in islice(deliveries, 2)}
        assert set(first_two) == {0, "other"}
        deliveries._timeout = SOON
        assert list(deliveries) == []
        deliveries._timeout = PATIENCE
        first_two[0].ack()
        assert next(iter(deliveries)).payload == 1


def test_what_is_not_settled_on_leaving_is_released_uncharged(consuming: Consuming) -> None:
    publish_many("t", [1, 2, 3])
    with subscribe("t", timeout=PATIENCE) as deliveries:
        each = iter(deliveries)
        next(each).ack()
        left = next(each).payload
    with subscribe("t", timeout=PATIENCE) as deliveries:
        again = {delivery.payload: delivery.attempt for delivery in islice(deliveries, 2)}
        deliveries._timeout = SOON
        assert list(deliveries) == []
    assert len(again) == 2
    assert again[left] == 1


def test_leaving_by_an_error_releases_too(consuming: Consuming) -> None:
    publish("t", 1)
    with pytest.raises(ZeroDivisionError), subscribe("t", timeout=PATIENCE) as deliveries:
        next(iter(deliveries)).payload / 0
    assert received(1) == [1]


def test_leaving_releases_leases_and_heartbeat(consuming: Consuming) -> None:
    with subscribe("t", timeout=0.2):
        wait_until(lambda: PartitionLease.objects.exclude(holder="").count() == 4)
        assert SubscriberHeartbeat.objects.count() == 1
    assert PartitionLease.objects.exclude(holder="").count() == 0
    assert SubscriberHeartbeat.objects.count() == 0


def test_retry_postpone_and_reject(consuming: Consuming) -> None:
    offsets = {name: publish("t", name).offset for name in ("retry", "postpone", "reject")}
    with subscribe("t", timeout=PATIENCE) as deliveries:
        for delivery in islice(deliveries, 3):
            if delivery.payload == "retry":
                delivery.retry(delay=3_000, reason="later")
            elif delivery.payload == "postpone":
                delivery.postpone(delay=4_000)
            else:
                delivery.reject("bad")
    assert states("t") == sorted([(offsets["retry"], 1, False), (offsets["postpone"], 0, False)])
    assert 2_900 < seconds_until_due(offsets["retry"]) <= 3_000.1
    assert 3_900 < seconds_until_due(offsets["postpone"]) <= 4_000.1
    assert DeliveryState.objects.get(message_offset=offsets["retry"]).last_error == "later"
    assert Message.objects.get(topic="t_dlq").last_error == "bad"


def test_the_last_attempts_retry_is_a_dead_letter(consuming: Consuming) -> None:
    publish("t", 1)
    with subscribe("t", timeout=PATIENCE, max_attempts=2) as deliveries:
        for delivery in islice(deliveries, 2):
            delivery.retry(delay=0)
    assert Message.objects.get(topic="t_dlq").failure_count == 2


def test_a_delivery_is_settled_once(consuming: Consuming) -> None:
    publish("t", 1)
    with subscribe("t", timeout=PATIENCE) as deliveries:
        delivery = next(iter(deliveries))
        delivery.ack()
        for another in (delivery.retry, lambda: delivery.reject("x")):
            with pytest.raises(ConfigurationError, match=r"settled already, by ack\(\)"):
                another()


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_one_acked_one_rejected_and_one_held_on_leaving_each_end_as_they_should(
    consuming: Consuming, settings, ordering: str
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    offsets = [publish("t", name, key=name).offset for name in ("acked", "rejected", "held")]
    with subscribe("t", timeout=PATIENCE, ordering=ordering) as deliveries:
        acked, rejected, held = islice(deliveries, 3)
        acked.ack()
        rejected.reject("broken")
        assert held.payload == "held"
    left = survey(LOG).group("t", "default")
    assert (left.lag, left.in_flight, left.dead_letters) == (1, 0, 1)
    assert watermark("t") < offsets[2]  # at offsets[1], unless it left before it was known that nothing is below
    assert received(1, ordering=ordering) == ["held"]
    assert received(0, ordering=ordering) == []
    left = survey(LOG).group("t", "default")
    assert (left.lag, left.in_flight, left.failing, left.waiting, left.oldest_age) == (0, 0, 0, 0, None)
    assert watermark("t") >= offsets[2]
    assert [(one.payload, one.last_error) for one in Message.objects.dead_letters("default", "t")] == [
        ("rejected", "broken")
    ]
    assert states("t") == []


def test_settling_it_once_more_in_the_same_way_does_nothing(consuming: Consuming) -> None:
    publish_many("t", ["acked", "rejected"])
    with subscribe("t", timeout=PATIENCE) as deliveries:
        for delivery in islice(deliveries, 2):
            for _ in range(2):
                delivery.ack() if delivery.payload == "acked" else delivery.reject("wrong")
    assert Message.objects.get(topic="t_dlq").payload == "rejected"
    assert not states("t")
    assert received(0) == []


class TestAckInATransaction:
    """Of the queue's database: both commit, or neither does."""

    def test_it_commits_with_it(self, consuming: Consuming) -> None:
        publish_many("t", range(20))
        with subscribe("t", timeout=PATIENCE, ordering="none") as deliveries:
            for delivery in islice(deliveries, 20):
                with transaction.atomic():
                    Effect.objects.create(name="seen", value=str(delivery.payload))
                    delivery.ack()
                    delivery.ack()
                    assert delivery.settled == "ack"
        assert sorted(map(int, Effect.objects.values_list("value", flat=True))) == list(range(20))
        assert received(0) == []
        assert not states("t")

    def test_what_was_rolled_back_is_unsettled(self, consuming: Consuming) -> None:
        publish("t", 1)
        with subscribe("t", timeout=PATIENCE) as deliveries:
            delivery = next(iter(deliveries))
            with transaction.atomic():
                delivery.ack()
                transaction.set_rollback(True)
            assert not delivery.settled
        assert states("t") == []
        assert received(1) == [1]
        assert received(0) == []

    def test_it_can_be_settled_again_then(self, consuming: Consuming) -> None:
        publish_many("t", [NewMessage(number, key="a") for number in range(3)])
        with subscribe("t", timeout=PATIENCE) as deliveries:
            waiting = iter(deliveries)
            for _ in range(3):
                delivery = next(waiting)
                with transaction.atomic():
                    with transaction.atomic():
                        delivery.ack()
                        transaction.set_rollback(True)
                    assert not delivery.settled
                    delivery.ack()
        assert received(0) == []
        assert not states("t")

    def test_the_next_one_is_not_waited_for_in_it(self, consuming: Consuming) -> None:
        publish_many("t", [1, 2])
        with subscribe("t", timeout=PATIENCE) as deliveries:
            waiting = iter(deliveries)
            first = next(waiting)
            with transaction.atomic():
                first.ack()
                with pytest.raises(ConfigurationError, match="in a transaction that is still open"):
                    next(waiting)
        assert received(1) == [3 - first.payload]

    def test_a_lost_one_is_refused(self, consuming: Consuming) -> None:
        publish("t", 1)
        with subscribe("t", timeout=PATIENCE) as deliveries:
            delivery = next(iter(deliveries))
            with transaction.atomic():
                revoke(LOG, "default", "t")
            with transaction.atomic(), pytest.raises(LeaseLost):
                delivery.ack()
            assert not delivery.settled
        assert received(1) == [1]

    def test_another_databases_is_refused(self, consuming: Consuming, tmp_path: Path) -> None:
        own = connections.databases["default"]
        other = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "other.sqlite3"), "OPTIONS": {}}
        connections.databases["elsewhere"] = own | other
        connections["elsewhere"].connect()
        publish("t", 1)
        try:
            with subscribe("t", timeout=PATIENCE) as deliveries:
                delivery = next(iter(deliveries))
                with transaction.atomic(using="elsewhere"), pytest.raises(ConfigurationError, match="of 'elsewhere'"):
                    delivery.ack()
                delivery.ack()
        finally:
            connections["elsewhere"].close()
            del connections["elsewhere"], connections.databases["elsewhere"]
        assert received(0) == []


def test_another_thread_may_end_it(consuming: Consuming) -> None:
    publish("t", 1)
    with subscribe("t") as deliveries:
        waiting = iter(deliveries)
        unsettled = next(waiting)
        closing = threading.Timer(0.3, deliveries.close)
        closing.start()
        assert list(waiting) == []
        closing.join()
        with pytest.raises(LeaseLost):
            unsettled.ack()
    assert received(1) == [1]


def test_a_wrong_delay_settles_nothing(consuming: Consuming) -> None:
    publish("t", 1)
    with subscribe("t", timeout=PATIENCE) as deliveries:
        delivery = next(iter(deliveries))
        with pytest.raises(InvalidMessage, match="delay"):
            delivery.retry(delay=-1)
        delivery.ack()
    assert received(0) == []


def test_what_has_timed_out_is_not_its_receivers_any_more(consuming: Consuming) -> None:
    publish("t", 1)
    with subscribe("t", timeout=PATIENCE, visibility_timeout=0.5, backoff=0) as deliveries:
        each = iter(deliveries)
        late = next(each)
        again = next(each)
        again.extend(seconds=300)
        assert (again.payload, again.attempt) == (1, 2)
        with pytest.raises(LeaseLost):
            late.ack()
        again.ack()
    assert received(0) == []


def test_what_was_reset_is_not_its_receivers_any_more(consuming: Consuming) -> None:
    publish("t", 1)
    with subscribe("t", timeout=PATIENCE) as deliveries:
        each = iter(deliveries)
        old = next(each)
        move(LOG, "default", "t", 0)
        old.ack()  # it cannot know yet; the settle finds that the token is stale
        again = next(each)
        assert (again.payload, again.attempt) == (1, 1)
        again.ack()
    assert received(0) == []


def test_a_receiver_that_has_lost_a_delivery_gets_the_next_ones(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "HEARTBEAT_INTERVAL": 0.5}
    publish_many("t", [1, 2])
    seen: list[tuple[object, int]] = []
    with subscribe("t", timeout=PATIENCE, ordering="none") as deliveries:
        for delivery in deliveries:
            if not seen:
                with transaction.atomic():
                    revoke(LOG, "default", "t")
                wait_until(lambda delivery=delivery: delivery._attempt.lease.lost)
                with pytest.raises(LeaseLost):
                    delivery.ack()
                seen.append((delivery.payload, delivery.attempt))
                continue
            delivery.ack()
            seen.append((delivery.payload, delivery.attempt))
            if {payload for payload, _ in seen[1:]} == {1, 2}:
                break
    assert not states("t")


def test_groups_are_apart(consuming: Consuming) -> None:
    publish("t", 1)
    assert received(1, group="one") == [1]
    assert received(1, group="two") == [1]
    assert received(0, group="one") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": True}, "not batch"),
        ({"atomic": True}, "not atomic"),
        ({"orderng": "key"}, "Did you mean 'ordering'"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"group": "no name"}, "group"),
    ],
)
def test_options_that_cannot_be(consuming: Consuming, options: dict, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said), subscribe("t", **options):
        pass


def test_it_is_refused_in_a_transaction_for_which_it_would_wait_on_leaving(consuming: Consuming) -> None:
    refused = pytest.raises(ConfigurationError, match="inside a transaction")
    with transaction.atomic(), refused, subscribe("orders", timeout=0):
        pass
    with subscribe("orders", timeout=0) as deliveries:
        assert not list(deliveries)


def test_its_async_twin_is_refused_there_too(consuming: Consuming) -> None:
    async def receive() -> None:
        async with asubscribe("orders", timeout=0):
            pass

    with transaction.atomic(), pytest.raises(ConfigurationError, match="inside a transaction"):
        async_to_sync(receive)()
    async_to_sync(receive)()


def test_what_ends_the_engine_is_raised_where_it_is_iterated(consuming: Consuming, monkeypatch) -> None:
    def broken(self: Loop) -> float:
        raise RuntimeError("the engine broke")

    monkeypatch.setattr(Loop, "run_once", broken)
    with pytest.raises(RuntimeError, match="the engine broke"), subscribe("t", timeout=PATIENCE) as deliveries:
        next(iter(deliveries))


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.session
def test_the_receivers_connection_that_the_server_has_ended_is_replaced(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop waits for hours at times, and has no request after which Django would look at it."""
    monkeypatch.setattr("sqlqueue.consumers.pull.subscribe.CONNECTIONS_LAST", 0.0)  # as if time had passed
    publish_many("t", range(3))
    used: list[int] = []

    with subscribe("t", timeout=30) as deliveries:
        for delivery in deliveries:
            used.append(connection_id())
            delivery.ack()
            if len(used) == 3:
                break
            end_this_threads_connection()
    assert len(set(used)) == 3


class TestResults:
    def test_a_result_is_kept_with_the_ack(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        with subscribe("t", timeout=PATIENCE, keep_results=60) as deliveries:
            next(iter(deliveries)).ack(result={"n": 1})
        assert get_status("t", id="a").groups["default"].result == {"n": 1}

    def test_in_a_transaction_it_commits_with_that(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        with subscribe("t", timeout=PATIENCE, keep_results=60) as deliveries:
            delivery = next(iter(deliveries))
            with transaction.atomic():
                delivery.ack(result=1)
                transaction.set_rollback(True)
            assert not Result.objects.exists()
            with transaction.atomic():
                delivery.ack(result=2)
            assert get_status("t", id="a").groups["default"].result == 2
        assert Result.objects.count() == 1

    def test_one_that_cannot_be_stored_leaves_it_unsettled(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        with subscribe("t", timeout=PATIENCE, keep_results=60) as deliveries:
            delivery = next(iter(deliveries))
            with pytest.raises(InvalidResult, match="not JSON"):
                delivery.ack(result={1, 2})
            assert delivery.settled == ""
            delivery.ack(result=[1, 2])
        assert get_status("t", id="a").groups["default"].result == [1, 2]

    def test_without_keep_results_it_says_what_to_do(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        with subscribe("t", timeout=PATIENCE) as deliveries:
            delivery = next(iter(deliveries))
            with pytest.raises(ConfigurationError, match="keep_results="):
                delivery.ack(result=1)
            delivery.ack()
