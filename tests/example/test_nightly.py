"""The example's nightly reports: a batch of them, and a newsletter that is sent by day."""

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from example_project.flights.models import DelayStatistic
from example_project.flights.results import DelayTotals
from example_project.reports.nightly import AIRPORTS, NAME, NEWSLETTERS, REPORTS, start_reports
from example_project.settings import SQLQUEUE
from sqlqueue import get_batch, get_status
from sqlqueue.consumers.declare.periodic import declared
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.testing import drain, published
from tests.consuming import QUICK, Consuming

pytestmark = pytest.mark.django_db

MODULE = "example_project.reports.consumers"


@pytest.fixture(autouse=True)
def _handlers(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = QUICK | SQLQUEUE
    sys.modules.pop(MODULE, None)
    import_module(MODULE)
    totals = DelayTotals(flights=9, departed=7, cancelled=2, total_delay=30, max_delay=30)
    DelayStatistic.objects.add("JFK", "B6", totals)


def standing(id: str) -> Sequence[Any]:
    batch = get_batch(id)
    assert batch is not None
    return batch.total, batch.done, batch.state


def test_the_newsletter_follows_when_all_reports_are_there() -> None:
    id = start_reports("monday")
    assert standing(id) == (len(AIRPORTS), 0, "running")
    drain(topics=[REPORTS])
    assert standing(id) == (len(AIRPORTS), len(AIRPORTS), "succeeded")
    (newsletter,) = published(NEWSLETTERS)
    assert newsletter.payload == {"edition": "monday"}
    drain(topics=[NEWSLETTERS])
    status = get_status(NEWSLETTERS, id=newsletter.id)
    assert status is not None
    none = {"departed": 0, "cancelled": 0}
    assert status.groups["default"].result == {"EWR": none, "JFK": {"departed": 7, "cancelled": 2}, "LGA": none}


def test_they_are_started_once_a_night() -> None:
    drain(ahead=timedelta(days=2), groups=[NAME])
    assert len(published(REPORTS)) == 2 * len(AIRPORTS)


def test_the_schedule_is_by_new_yorks_clocks_and_no_newsletter_is_sent_at_night() -> None:
    recurrence = declared()[NAME].recurrence
    assert (recurrence.cron, recurrence.timezone) == ("0 2 * * *", "America/New_York")
    (newsletters,) = registry.select(topics=[NEWSLETTERS])
    hours = newsletters.flow.active
    assert hours is not None
    night, noon = (datetime(2026, 7, 1, hour, tzinfo=ZoneInfo("America/New_York")) for hour in (2, 12))
    assert (hours.contains(night), hours.contains(noon)) == (False, True)
