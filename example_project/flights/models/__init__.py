"""The tables of flight operations, one a file."""

from example_project.flights.models.aircraft import Aircraft
from example_project.flights.models.alert import Alert
from example_project.flights.models.delay_statistic import DelayStatistic
from example_project.flights.models.free_seats import FreeSeats
from example_project.flights.models.published_batch import PublishedBatch

__all__ = ["Aircraft", "Alert", "DelayStatistic", "FreeSeats", "PublishedBatch"]
