"""The pace of a group: when its backlog will be gone is told from a steady fall of counted lags, or as unknown."""

import json
from datetime import timedelta

import pytest

from sqlqueue.leases import heartbeat
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup, Message, Offset
from sqlqueue.stats import sampling
from sqlqueue.stats.survey import survey
from sqlqueue.stats.throughput import drained_in, pace
from tests.factories import ActivityFactory, MessageFactory, this_minute
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.django_db


def backlog(lag: int) -> None:
    """Register group g, which a process serves and which has so many messages to settle."""
    MessageFactory.create_batch(lag, topic="t")
    register(LOG, "g", "t", start=0)
    heartbeat.beat(LOG, "a", [("g", "t")], 60)


def minutes(lags: list[int], acked: list[int], ago: int = 0) -> None:
    """Record the last minutes of the group, the oldest first; ago: how many minutes ago the last of them was."""
    for number, (lag, settled) in enumerate(zip(lags, acked, strict=True)):
        minute = this_minute() - timedelta(minutes=ago + len(lags) - 1 - number)
        ActivityFactory.create(minute=minute, lag=lag, acked=settled)


def told() -> float | None:
    seen = survey(LOG)
    (group,) = seen.groups
    return drained_in(group)


STEADY = ([160, 130, 100, 70], [30, 30, 30, 30])


@pytest.mark.parametrize(("lags", "acked"), [STEADY, ([160, 130, 100, 70], [60, 60, 60, 60])])
def test_a_steady_fall_tells_when_the_backlog_is_gone(lags: list[int], acked: list[int]) -> None:
    backlog(40)
    minutes(lags, acked)
    assert told() == pytest.approx(40 / 0.5)
    (group,) = json.loads(run("queuestatus", "--json").out)["groups"]
    assert group["drained_in"] == pytest.approx(40 / 0.5)
    assert "80 s" in run("queuestatus").out


UNKNOWN: dict[str, tuple[list[int], list[int]]] = {
    "a minute alone": ([160], [30]),
    "two minutes": ([160, 130], [30, 30]),
    "a short burst at the beginning": ([160, 70, 70, 70], [90, 0, 0, 0]),
    "a short burst at the end": ([160, 160, 160, 70], [0, 0, 0, 90]),
    "a purge": ([900, 600, 300, 70], [30, 30, 30, 30]),
    "nothing settled": ([160, 130, 100, 70], [0, 0, 0, 0]),
    "slower and slower": ([310, 190, 70, 60, 50], [120, 120, 120, 10, 10]),
    "up and down": ([160, 130, 190, 70], [30, 30, 30, 90]),
    "a bulk since": ([22, 16, 10], [6, 6, 6]),
    "estimates": ([sampling.EXACT + 60, sampling.EXACT + 30, sampling.EXACT, sampling.EXACT - 30], [30, 30, 30, 30]),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_it_is_unknown_from_minutes_that_say_nothing_of_the_next(what: str) -> None:
    backlog(40)
    minutes(*UNKNOWN[what])
    assert told() is None
    assert "unknown" in run("queuestatus").out


def test_it_is_unknown_once_nothing_was_measured_lately() -> None:
    backlog(40)
    minutes([160, 115, 70], [60, 60, 60], ago=3)
    assert told() is None
    ActivityFactory.create(acked=30)
    assert told() is None


@pytest.mark.parametrize("state", ["paused", "away", "stuck", "estimated", "outside hours", "budget spent"])
def test_it_is_unknown_of_a_group_that_does_not_work_as_in_the_last_minutes(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    backlog(40)
    minutes(*STEADY)
    if state == "estimated":
        for name, value in (("EXACT", 10), ("SAMPLE", 5)):
            monkeypatch.setattr(sampling, name, value)
    elif state == "away":
        heartbeat.leave(LOG, "a")
    elif state == "paused":
        ConsumerGroup.objects.update(paused=True)
    elif state == "stuck":
        Message.objects.update(created_at=this_minute() - timedelta(hours=1))
        Offset.objects.update(updated_at=this_minute() - timedelta(hours=1))
    elif state == "outside hours":
        tomorrow = (this_minute() + timedelta(days=2)).strftime("%a").lower()
        ConsumerGroup.objects.update(flow=json.dumps({"active": f"{tomorrow} 09:00-10:00"}))
    else:
        ConsumerGroup.objects.update(opened_at=this_minute(), flow=json.dumps({"retry_budget": "5/m"}))
    assert told() is None
    assert "unknown" in run("queuestatus").out


def test_a_lag_that_grows_has_no_end_that_is_unknown() -> None:
    backlog(40)
    minutes([10, 20, 30, 40], [30, 30, 30, 30])
    seen = survey(LOG)
    assert pace(seen.groups[0]) == pytest.approx(-1 / 6)
    assert told() is None
    assert "unknown" not in run("queuestatus").out
