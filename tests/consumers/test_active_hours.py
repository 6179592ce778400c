"""Active hours of a group: what is due outside them waits, is charged nothing, and raises no alarm."""

from datetime import timedelta
from typing import Any

import pytest

from sqlqueue import publish, subscribe
from sqlqueue.conf import settings as options
from sqlqueue.core.flow import DAYS
from sqlqueue.database import clock
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.groups import override_flow, register
from sqlqueue.models import ConsumerGroup, DeliveryState, Message
from sqlqueue.monitoring.responses import excesses
from sqlqueue.stats.attention import findings
from sqlqueue.stats.survey import survey
from sqlqueue.testing import drain
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]
GROUP_TOPIC = {"group": "default", "topic": "reports"}


def other_days() -> str:
    """Hours that neither yesterday nor today nor tomorrow belong to."""
    today = clock.now(Log.of(options.DATABASE)).weekday()
    return f"{DAYS[(today + 2) % 7]}-{DAYS[(today + 5) % 7]} 00:00-24:00"


def these_days() -> str:
    today = clock.now(Log.of(options.DATABASE)).weekday()
    return f"{DAYS[(today + 6) % 7]}-{DAYS[(today + 1) % 7]} 00:00-24:00"


def test_what_is_due_outside_the_hours_waits_until_they_begin(consuming: Consuming) -> None:
    handled: list[int] = []
    consuming.consumer("reports", lambda delivery: handled.append(delivery.attempt), active=other_days())
    publish("reports", 1)
    host = consuming.drain()  # nothing is due
    assert not host.settled
    consuming.start()
    wait_until(lambda: (seen := survey(Log.of(options.DATABASE)).groups[0]).subscribers and not seen.unowned)
    assert not handled
    override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"active": these_days()})
    wait_until(lambda: handled == [1])
    assert not DeliveryState.objects.exclude(acked=True).exists()


def test_what_has_not_started_when_the_hours_end_is_released_without_an_attempt(consuming: Consuming) -> None:
    gate, started = consuming.gate(), []

    def handle(delivery) -> None:
        started.append(delivery.attempt)
        gate.wait()

    consuming.consumer("reports", handle, ordering="none", active=these_days())
    for number in range(4):
        publish("reports", number)
    host = consuming.start(threads=1)
    wait_until(lambda: len(host.subscriber.in_flight) > 1)
    override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"active": other_days()})
    wait_until(lambda: len(host.subscriber.in_flight) == 1)
    gate.set()
    wait_until(lambda: survey(Log.of(options.DATABASE)).groups[0].lag == 3)
    override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"active": None})
    wait_until(lambda: started == [1, 1, 1, 1])


def test_neither_lag_nor_age_nor_a_missing_consumer_alarms_outside_the_hours(
    consuming: Consuming, settings: Any
) -> None:
    health = {"max_lag": 0, "max_age": 0, "no_subscriber": True}
    settings.SQLQUEUE = {**QUICK, "HEALTH": health, "RETENTION": 0}
    consuming.consumer("reports", print, active=other_days())
    publish("reports", 1)
    consuming.drain()
    Message.objects.update(created_at=clock.now(Log.of(options.DATABASE)) - timedelta(days=3))
    seen = survey(Log.of(options.DATABASE))
    assert (seen.groups[0].outside_hours, seen.groups[0].lag, seen.groups[0].waited) == (True, 1, None)
    assert excesses(seen) == []
    assert {(one.kind.name, one.severity) for one in findings(seen)} == {
        ("outside_hours", "note"),
        ("no_consumers", "note"),
    }
    override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"active": None})
    assert {one.limit for one in excesses(survey(Log.of(options.DATABASE)))} == {"max_lag", "max_age", "no_subscriber"}


def test_age_counts_from_when_the_hours_began(transactional_db: None) -> None:
    publish("reports", 1)
    register(Log.of(options.DATABASE), **GROUP_TOPIC)
    now = clock.now(Log.of(options.DATABASE))
    Message.objects.update(created_at=now - timedelta(days=3))
    override_flow(
        Log.of(options.DATABASE),
        **GROUP_TOPIC,
        values={"active": f"{DAYS[now.weekday()]}-{DAYS[(now.weekday() + 1) % 7]} 00:00-24:00"},
    )
    [group] = survey(Log.of(options.DATABASE)).groups
    assert group.oldest_age > 2 * 86_400
    assert group.waited < 2 * 86_400  # whether midnight has passed meanwhile or not


def test_the_process_that_starts_last_says_what_the_hours_are_and_a_pull_loop_without_any_leaves_them(
    consuming: Consuming,
) -> None:
    hours = other_days()
    consuming.consumer("reports", print, active=hours)
    publish("reports", 1)
    consuming.drain()
    assert ConsumerGroup.objects.get().flow == f'{{"active": "{hours}"}}'
    with subscribe("reports", group="default", timeout=0.5) as deliveries:
        assert not list(deliveries)
    assert hours in ConsumerGroup.objects.get().flow
    consuming.consumer("reports", print)
    consuming.drain()
    assert ConsumerGroup.objects.get().flow is None


def test_tests_drain_at_any_time(consuming: Consuming) -> None:
    consuming.consumer("reports", print, active=other_days())
    publish("reports", 1)
    assert drain() == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [({"active": "at night"}, "cannot be read"), ({"activ": None}, "Did you mean 'active'")],
)
def test_what_cannot_be_is_refused(consuming: Consuming, values: dict[str, str | None], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values=values)
    with pytest.raises(ConfigurationError, match=said):
        consuming.consumer("reports", print, **values)
    with pytest.raises(ConfigurationError, match="there is no group 'default' in topic 'reports'"):
        override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={})
