"""What the demo shows beside the flights: jobs, a call, refunds that are paid within limits, and a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from example_project.payments.paying import refund_payment
from example_project.refunds.asking import ask_for_refunds
from example_project.refunds.rules import EXAMPLES, MOST
from example_project.reports.nightly import DAYTIME, start_reports
from example_project.reports.punctuality import EVERY, last_punctuality
from example_project.reports.tasks import busiest_carrier
from example_project.seats.reserving import reserve_seats
from sqlqueue import get_batch

AIRPORT = "JFK"
FLIGHT, SEATS = "UA-1545", 2
POLL_SECONDS = 0.1

Wait = Callable[[float], None]
"""Lets the consumers go on for so many seconds."""


def shown_meanwhile(wait: Wait) -> Iterator[str]:
    """Use the queue as a site does while its consumers run, and yield a line about each result."""
    batch = start_reports(edition=f"demo@{datetime.now(timezone.utc).isoformat()}")
    ask_for_refunds()
    yield _periodic_job(wait)
    yield _task(wait)
    yield f"Call: reserve_seats({FLIGHT!r}, {SEATS}) has the reply {reserve_seats(FLIGHT, SEATS)}"
    yield _refunds(wait)
    yield _batch(wait, batch)


def _periodic_job(wait: Wait) -> str:
    while (last := last_punctuality()) is None:
        wait(POLL_SECONDS)
    return f"Periodic job, every {EVERY.seconds} s meanwhile: {last}"


def _task(wait: Wait) -> str:
    task = busiest_carrier.enqueue(AIRPORT)
    while not task.is_finished:
        wait(POLL_SECONDS)
        task.refresh()
    outcome = task.errors[0].exception_class_path if task.errors else task.return_value
    return f"Task, enqueued after that: busiest_carrier({AIRPORT!r}) is {task.status.value}, {outcome}"


def _refunds(wait: Wait) -> str:
    small = {flight: amount for flight, amount in EXAMPLES if amount <= MOST}
    while not all((payment := refund_payment(flight)) and payment.finished for flight in small):
        wait(POLL_SECONDS)
    return (
        f"Refunds: {len(small)} are paid through the bank, within its limits: {sum(small.values())} dollars; "
        f"{len(EXAMPLES) - len(small)} of more than {MOST} dollars is left to a person"
    )


def _batch(wait: Wait, id: str) -> str:
    while not ((batch := get_batch(id)) and batch.finished_at):
        wait(POLL_SECONDS)
    return (
        f"Batch: {batch.done} of {batch.total} {batch.name}, {batch.state}; the newsletter about them is sent {DAYTIME}"
    )
