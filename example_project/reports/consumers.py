"""The handlers: how late the departures are that have been consumed so far, and the nightly reports of airports."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Sum

from example_project.flights.models import DelayStatistic
from example_project.reports import nightly
from example_project.reports.punctuality import EVERY, NAME
from sqlqueue import Delivery, consumer, get_status, periodic


@periodic(every=EVERY, name=NAME, keep_results=timedelta(hours=1))
def report_punctuality(delivery: Delivery) -> dict[str, Any]:
    """Return the departures so far, and their mean delay in minutes (None before the first). The queue keeps it."""
    totals = DelayStatistic.objects.aggregate(departed=Sum("departed"), minutes=Sum("total_delay"))
    departed = totals["departed"] or 0
    return {"departed": departed, "mean_delay": round(totals["minutes"] / departed, 1) if departed else None}


@periodic(nightly.CRON, timezone=nightly.NEW_YORK, name=nightly.NAME, atomic=True)
def start_nightly_reports(delivery: Delivery) -> None:
    """Start the night's reports. Atomic: once, with the tick's ack."""
    nightly.start_reports(delivery.id)


@consumer(nightly.REPORTS, group=nightly.GROUP, keep_results=nightly.KEPT)
def report_airport(delivery: Delivery) -> dict[str, Any]:
    """Return an airport's departures and cancellations so far; the newsletter reads them from the queue."""
    statistics = DelayStatistic.objects.filter(origin=delivery.payload["airport"])
    return statistics.aggregate(departed=Sum("departed", default=0), cancelled=Sum("cancelled", default=0))


@consumer(nightly.NEWSLETTERS, active=nightly.DAYTIME, keep_results=nightly.KEPT)
def send_newsletter(delivery: Delivery) -> dict[str, Any]:
    """Return what a real project would mail to passengers, by day: what is due at night waits for the morning."""
    reports = {}
    for airport in nightly.AIRPORTS:
        status = get_status(nightly.REPORTS, id=nightly.report_id(delivery.payload["edition"], airport), key=airport)
        reports[airport] = status.groups[nightly.GROUP].result if status else None
    return reports
