"""The example's periodic job and its task, consumed as others are."""

import sys
from datetime import datetime, timedelta, timezone
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from example_project.flights.models import DelayStatistic
from example_project.flights.results import DelayTotals
from example_project.reports.punctuality import EVERY, NAME, TOPIC, Punctuality, last_punctuality
from example_project.reports.tasks import busiest_carrier
from sqlqueue import publish
from sqlqueue.consumers.declare.periodic import declared
from sqlqueue.testing import drain
from tests.consuming import Consuming

MODULE = "example_project.reports.consumers"


@pytest.fixture
def jobs(consuming: Consuming) -> ModuleType:
    """The module with the periodic job, which is registered for this test only."""
    sys.modules.pop(MODULE, None)
    return import_module(MODULE)


def departures(origin: str, carrier: str, departed: int, delay: int) -> None:
    totals = DelayTotals(flights=departed, departed=departed, cancelled=0, total_delay=delay, max_delay=delay)
    DelayStatistic.objects.add(origin, carrier, totals)


@pytest.fixture
def statistics(db: None) -> None:
    departures("JFK", "B6", 4, 30)
    departures("JFK", "UA", 2, 0)
    departures("EWR", "UA", 9, 9)


def tick() -> None:
    publish(TOPIC, {}, id=f"{NAME}@{datetime.now(timezone.utc).isoformat()}", group=NAME)


def test_the_periodic_job_is_declared(jobs: ModuleType) -> None:
    definition = declared()[NAME]
    assert (definition.recurrence.every, definition.topic, definition.group) == (EVERY.total_seconds(), TOPIC, NAME)
    assert timedelta(seconds=5) > EVERY, "the demo waits for the first one"


def test_the_last_run_is_shown(jobs: ModuleType, statistics: None) -> None:
    assert last_punctuality() is None
    tick()
    assert last_punctuality() is None, "it has not run yet"
    drain()
    tick()
    drain()
    departures("JFK", "B6", 1, 60)
    tick()
    last = last_punctuality()
    assert last is not None
    assert (last.runs, last.departed, last.mean_delay) == (2, 15, 2.6)
    assert str(last).endswith(" UTC 15 had departed, 2.6 minutes late on average")


def test_before_the_first_departure_there_is_no_mean_delay(jobs: ModuleType) -> None:
    nothing: Any = None
    assert jobs.report_punctuality(nothing) == {"departed": 0, "mean_delay": None}
    first = Punctuality(1, datetime(2026, 1, 1, tzinfo=timezone.utc), 0, None)
    assert str(first) == "1 runs; at 00:00:00 UTC 0 had departed"


def test_the_task_returns_the_busiest_carrier(statistics: None) -> None:
    assert busiest_carrier.func("JFK") == {"carrier": "B6", "flights": 4}
    with pytest.raises(LookupError, match="no flights from LGA"):
        busiest_carrier.func("LGA")
