"""Publishing of the file's flights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from django.db import IntegrityError, reset_queries, transaction

from example_project.flights.data import Flight, read_flights
from example_project.flights.models import PublishedBatch
from example_project.flights.rules import TOPIC
from sqlqueue import NewMessage, publish_many

BATCH_ROWS = 500


class OtherPublisher(Exception):
    """Another process is publishing the same rows."""


def publish_flights(total: int, batch_rows: int = BATCH_ROWS) -> Iterator[int]:
    """Publish those of the file's first `total` flights that are not published yet; yield each batch's size after its
    commit.

    A batch's messages and its PublishedBatch row are one transaction: after a killed run the next one continues.
    Raises OtherPublisher.
    """
    start = PublishedBatch.objects.published_rows()
    flights = read_flights(max(start, total), start=start)
    while batch := list(islice(flights, batch_rows)):
        with transaction.atomic():
            _claim_rows(start, start + len(batch))
            publish_many(TOPIC, [flight_message(flight) for flight in batch])
        start += len(batch)
        reset_queries()  # with DEBUG Django keeps every statement in memory
        yield len(batch)


def flight_message(flight: Flight) -> NewMessage:
    """Return a flight as a message: its key keeps the aircraft's flights in order, its id is published once."""
    return NewMessage(flight.payload(), key=flight.tail_number or "", id=flight.id)


def _claim_rows(start: int, stop: int) -> None:
    try:
        PublishedBatch.objects.create(start=start, stop=stop)
    except IntegrityError as error:
        raise OtherPublisher(f"Rows {start:,} to {stop:,} have just been published by another process.") from error
