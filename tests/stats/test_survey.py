"""The survey reads the stats of everything, and costs a handful of statements."""

import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sqlqueue import Delivery, NewMessage, Reject, Retry, publish, publish_many
from sqlqueue.log.groups import register
from sqlqueue.log.status import offset_before
from sqlqueue.models import Activity, Message, Offset, SubscriberHeartbeat
from sqlqueue.operations.topics import pause
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.survey import survey, survey_with_partitions
from sqlqueue.stats.throughput import rates
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction


def of(topic: str = "t", group: str = "default") -> GroupSurvey:
    found = survey(LOG).group(topic, group)
    assert found is not None
    return found


def test_a_group_that_has_read_nothing(consuming: Consuming) -> None:
    register(LOG, "default", "t")
    for number in range(30):
        publish("t", number, key=str(number))
    seen = of()
    assert (seen.lag, seen.estimated, seen.in_flight, seen.subscribers) == (30, False, 0, 0)
    assert seen.oldest_age is not None
    assert 0 <= seen.oldest_age < 60
    assert seen.away
    assert seen.unowned == seen.partitions
    assert not seen.stuck


def test_what_failed_waits_and_died(consuming: Consuming) -> None:
    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        if delivery.payload == "retry":
            raise Retry(delay=3600)
        if delivery.payload == "reject":
            raise Reject("no")

    for payload in ("ok", "retry", "behind", "reject"):
        publish("t", payload, key="other" if payload == "reject" else "a")
    consuming.drain()
    seen = of()
    assert (seen.failing, seen.waiting, seen.dead_letters, seen.lag) == (1, 1, 1, 2)


def test_what_waits_behind_a_key_counts_as_waiting_however_many_it_is(consuming: Consuming) -> None:
    @consuming.consumer("t", batch_size=10)
    def handle(delivery: Delivery) -> None:
        raise Retry(delay=3600)

    publish_many("t", [NewMessage(number, key="a") for number in range(500)])
    consuming.drain()
    seen = of()
    assert (seen.failing, seen.waiting, seen.lag) == (1, 499, 500)
    partitions = survey_with_partitions(LOG, "t", "default")[1]
    assert [one.waiting for one in partitions if one.lag] == [499]
    assert sum(one.lag for one in partitions) == 500


def test_what_is_in_flight(consuming: Consuming) -> None:
    gate = consuming.gate()
    consuming.consumer("t", lambda delivery: gate.wait(30))
    publish("t", 1)
    consuming.start()
    wait_until(lambda: of().in_flight == 1)
    seen = survey(LOG)
    assert seen.subscribers == 1
    assert (of().unowned, of().away) == (0, False)
    gate.set()
    wait_until(lambda: of().lag == 0)
    assert of().oldest_age is None


def test_a_long_backlog_is_counted(consuming: Consuming) -> None:
    register(LOG, "default", "t")
    publish_many("t", [NewMessage(number, key=str(number % 50)) for number in range(10_000)])
    seen = of()
    assert (seen.lag, seen.estimated) == (10_000, False)


def test_a_long_backlog_behind_a_collected_past_is_counted(consuming: Consuming) -> None:
    publish_many("t", [NewMessage(number, key=str(number % 50)) for number in range(20_000)])
    offsets = list(Message.objects.order_by("offset").values_list("offset", flat=True))
    Message.objects.filter(offset__lt=offsets[10_000]).delete()
    register(LOG, "default", "t")
    assert of().lag == 10_000


@pytest.mark.parametrize("messages", [200, 230, 300, 399, 450])
def test_a_backlog_whose_ends_overlap_is_not_counted_twice(consuming: Consuming, messages: int) -> None:
    register(LOG, "default", "t")
    publish_many("t", [NewMessage(number, key="a") for number in range(messages)])
    assert of().lag == pytest.approx(messages, rel=0.05)


def test_a_watermark_that_stands_still_is_told(consuming: Consuming) -> None:
    register(LOG, "default", "t")
    offset = publish("t", 1).offset
    assert not of().stuck
    Message.objects.update(created_at=timezone.now() - timedelta(minutes=10))
    [stuck] = of().stuck
    assert (stuck.offset, stuck.why) == (offset, "standing")
    pause(LOG, "t")
    assert of().paused
    assert not of().stuck


@pytest.mark.parametrize(
    "options", [{}, {"rate_limit_per_key": "1/s"}, {"concurrency_limit_per_key": 1, "ordering": "none"}]
)
def test_a_failing_message_that_holds_the_watermark_is_told(consuming: Consuming, options: dict[str, Any]) -> None:
    @consuming.consumer("t", **options)
    def fail(delivery: Delivery) -> None:
        raise Retry(delay=3600)

    offset = publish("t", 1, key="a").offset
    consuming.drain()
    Message.objects.update(created_at=timezone.now() - timedelta(minutes=10))
    assert [(stuck.offset, stuck.why) for stuck in of().stuck] == [(offset, "failing")]


@pytest.mark.parametrize("groups", [1, 3])
def test_the_number_of_statements_does_not_grow_with_the_partitions(settings, consuming, groups: int) -> None:
    settings.SQLQUEUE = {"TOPICS": {"wide": {"partitions": 200}}}
    for number in range(groups):
        register(LOG, f"g{number}", "wide")
    publish_many("wide", [NewMessage(number, key=str(number)) for number in range(2_000)])
    with CaptureQueriesContext(connection) as captured:
        seen = survey(LOG)
    assert [group.lag for group in seen.groups] == [2_000] * groups
    assert len(captured) <= (16 if groups == 1 else 30)


def test_the_minutes_figures_add_up(consuming: Consuming) -> None:
    @consuming.consumer("t", max_attempts=2, backoff=0)
    def handle(delivery: Delivery) -> None:
        if delivery.payload == 0:
            raise ValueError("never")

    for number in range(10):
        publish("t", number)
    consuming.start()

    def counted() -> list[int]:
        rows = Activity.objects.filter(topic="t")
        return [sum(getattr(row, name) for row in rows) for name in ("acked", "retried", "dead")]

    wait_until(lambda: Offset.objects.exists() and of().lag == 0)
    consuming.end_hosts()
    assert counted() == [9, 1, 1]
    assert rates(LOG, timezone.now())["t", "default"].acked > 0


def test_a_time_has_an_offset_in_the_log(consuming: Consuming) -> None:
    assert offset_before(LOG, timezone.now()) == 0
    publish_many("t", range(3_000))
    begin = timezone.now() - timedelta(days=3)
    messages = list(Message.objects.order_by("offset"))
    offsets = [message.offset for message in messages]
    for number, message in enumerate(messages):
        message.created_at = begin + timedelta(minutes=number)
    Message.objects.bulk_update(messages, ["created_at"], batch_size=100)
    Message.objects.filter(offset__in=offsets[::7]).delete()
    for wanted in (1, 50, 1_499, 2_999):
        low = offset_before(LOG, begin + timedelta(minutes=wanted))
        after = Message.objects.filter(offset__gt=low).order_by("offset").first()
        assert after is not None
        missing = wanted if wanted % 7 else wanted + 1
        assert after.created_at == begin + timedelta(minutes=missing)
    assert offset_before(LOG, timezone.now()) == offsets[-1]
    assert offset_before(LOG, begin) < offsets[1]
    with pytest.raises(ValueError, match="aware"):
        offset_before(LOG, begin.replace(tzinfo=None))


def test_only_one_topic_is_looked_at(consuming: Consuming) -> None:
    for topic in ("t", "other"):
        register(LOG, "default", topic)
        publish(topic, 1)
    seen = survey(LOG, "t")
    assert [topic.name for topic in seen.topics] == ["t"]
    assert [(group.topic, group.lag) for group in seen.groups] == [("t", 1)]
    register(LOG, "second", "t")
    assert [group.group for group in survey(LOG, "t", "second").groups] == ["second"]


def test_a_heartbeat_that_knows_less_is_no_open_transaction(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None)
    consuming.start()
    wait_until(lambda: survey(LOG).subscribers == 1)
    publish("t", 1)
    SubscriberHeartbeat.objects.update(horizon=0)
    seen = survey(LOG)
    assert (seen.horizon_lag, seen.horizon_age) == (0, 0.0)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_transaction_that_publishes_holds_the_horizon_back_while_it_is_open(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None)
    consuming.start()
    wait_until(lambda: survey(LOG).subscribers == 1)
    with OpenTransaction() as open_transaction:
        open_transaction.do(lambda: publish("t", "open"))
        publish("t", "after")
        time.sleep(0.1)
        seen = survey(LOG)
        assert seen.horizon_lag > 0
        assert 0.1 <= seen.horizon_age < 60
        open_transaction.commit()
    assert survey(LOG).horizon_lag == 0
