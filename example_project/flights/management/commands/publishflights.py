"""Publishing the flights (`publishflights`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console

from example_project.flights.bars import publish_with_bar
from example_project.flights.data import TOTAL_FLIGHTS, FlightDataMissing
from example_project.flights.publishing import OtherPublisher


class Command(BaseCommand):
    help = "Publishes the first flights of 2013 out of New York, except those that are published already."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--flights", type=int, default=TOTAL_FLIGHTS, help="how many (default: all, %(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        total: int = options["flights"]
        if not 0 < total <= TOTAL_FLIGHTS:
            raise CommandError(f"--flights must lie between 1 and {TOTAL_FLIGHTS:,}.")
        console = Console(file=options.get("stdout"))
        try:
            published, seconds = publish_with_bar(console, total)
        except (FlightDataMissing, OtherPublisher) as error:
            raise CommandError(str(error)) from error
        console.print(f"Published {published:,} flights in {seconds:.1f} s.")
