"""The nightly reports: one for each airport, and a newsletter when all of them are there."""

from __future__ import annotations

from datetime import timedelta

from sqlqueue import Batch

REPORTS = "airport-reports"
NEWSLETTERS = "newsletters"
AIRPORTS = ("EWR", "JFK", "LGA")
GROUP = "reports"  # makes the airports' reports
NAME = "nightly-reports"  # of the periodic schedule
CRON = "0 2 * * *"
NEW_YORK = "America/New_York"
DAYTIME = f"08:00-20:00 {NEW_YORK}"
KEPT = timedelta(days=2)


def start_reports(edition: str) -> str:
    """Ask for every airport's report, and for the newsletter once all have succeeded; return the batch's id.

    edition: a name that no other night has; the reports' ids begin with it.
    """
    with Batch(name="airport reports", on_success=(NEWSLETTERS, {"edition": edition})) as batch:
        for airport in AIRPORTS:
            batch.publish(REPORTS, {"airport": airport}, key=airport, id=report_id(edition, airport))
    return batch.id


def report_id(edition: str, airport: str) -> str:
    """Return the id of an airport's report."""
    return f"{edition}:{airport}"
