"""An hour that is computed again never knows less."""

from datetime import datetime, timezone

import pytest

from sqlqueue.contrib.spark import models
from sqlqueue.contrib.spark.models import Columns, HourlyStatistic, later

COLUMNS = Columns(unique=("hour",), counts=("acked", "dead"), figures=("p50",), progress=("last",))


def row(hour: int, acked: int = 0, dead: int = 0, p50: float | None = None, last: int = 0, **more: bool) -> dict:
    return {"hour": hour, "acked": acked, "dead": dead, "p50": p50, "last": last, **more}


def test_an_hour_that_knows_more_wins() -> None:
    assert later(COLUMNS, row(1, 5, p50=1.0, last=3), row(1, 6, p50=2.0, last=4)) == row(1, 6, p50=2.0, last=4)


def test_an_hour_whose_counts_fall_stays_and_is_not_looked_for_again() -> None:
    assert later(COLUMNS, row(1, 5, 1, p50=1.0, last=3), row(1, 6, 0, p50=2.0, last=9)) == row(1, 5, 1, p50=1.0, last=9)


def test_a_figure_that_is_missing_or_of_a_part_only_stays() -> None:
    old = row(1, 5, p50=1.0)
    assert later(COLUMNS, old, row(1, 6)) == row(1, 6, p50=1.0)
    found = later(COLUMNS, old, row(1, 6, p50=2.0, partial=True))
    assert (found["acked"], found["p50"]) == (6, 1.0)
    assert later(COLUMNS, row(1, 5), row(1, 6, p50=2.0, partial=True))["p50"] == 2.0  # better than nothing


@pytest.mark.django_db
def test_hours_are_stored_past_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "AT_ONCE", 2)
    columns = HourlyStatistic.columns
    row = {
        "topic": "t",
        "consumer_group": "",
        **dict.fromkeys([*columns.counts, *columns.figures, *columns.progress], 0),
    }
    hours = [datetime(2026, 1, 1, hour, tzinfo=timezone.utc) for hour in range(7)]
    for published in (1, 2):
        rows = [{**row, "hour": hour, "published": published} for hour in hours]
        assert HourlyStatistic.objects.store(rows) == (7, 0)
        assert list(HourlyStatistic.objects.values_list("published", flat=True)) == [published] * 7
    assert HourlyStatistic.objects.store([{**row, "hour": hours[0], "published": 1}]) == (1, 1)
