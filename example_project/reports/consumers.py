"""The periodic job: how late the departures are that have been consumed so far."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Sum

from example_project.flights.models import DelayStatistic
from example_project.reports.punctuality import EVERY, NAME
from sqlqueue import Delivery, periodic


@periodic(every=EVERY, name=NAME, keep_results=timedelta(hours=1))
def report_punctuality(delivery: Delivery) -> dict[str, Any]:
    """Return the departures so far, and their mean delay in minutes (None before the first). The queue keeps it."""
    totals = DelayStatistic.objects.aggregate(departed=Sum("departed"), minutes=Sum("total_delay"))
    departed = totals["departed"] or 0
    return {"departed": departed, "mean_delay": round(totals["minutes"] / departed, 1) if departed else None}
