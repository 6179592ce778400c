"""The demo: flights published, consumed and checked (`make demo`)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from rich.console import Console

from example_project.flights.bars import (
    ConsumersFailed,
    consume_with_bars,
    publish_with_bar,
    running_consumers,
)
from example_project.flights.check import check_flights
from example_project.flights.children import leaving_on_sigterm
from example_project.flights.data import TOTAL_FLIGHTS, FlightDataMissing
from example_project.flights.demo_database import (
    DemoDatabaseInUse,
    demo_in_use,
    is_demo_database,
    remove_demo_database,
)
from example_project.flights.meanwhile import shown_meanwhile
from example_project.flights.models import PublishedBatch
from example_project.flights.publishing import OtherPublisher
from example_project.flights.report import Timings, print_report

LOG_TAIL_LINES = 30


class Command(BaseCommand):
    help = "Publishes and consumes real flights, and compares the results with a direct computation."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--flights", type=int, default=20_000, help="how many of 336,776 (default: %(default)s)")
        parser.add_argument(
            "--fresh",
            action=BooleanOptionalAction,
            default=True,
            help="begin with an empty database: the demo's own SQLite file is removed, any other must be empty",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 < options["flights"] <= TOTAL_FLIGHTS:
            raise CommandError(f"--flights must lie between 1 and {TOTAL_FLIGHTS:,}.")
        self.console = Console(file=options.get("stdout"))
        self.log = Path(settings.VAR_DIR, "demo-consumers.log")
        try:
            with leaving_on_sigterm(), demo_in_use():
                self.prepare(options["fresh"])
                self.run_flights(options["flights"])
        except (FlightDataMissing, OtherPublisher, DemoDatabaseInUse) as error:
            raise CommandError(str(error)) from error
        except ConsumersFailed as error:
            raise CommandError(f"{error} The end of {self.log}:\n{_tail(self.log)}") from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted. Start again with: make demo", returncode=130) from None

    def prepare(self, fresh: bool) -> None:
        """Create the tables; fresh: in an empty database. Raises CommandError if another database has flights."""
        if fresh and is_demo_database() and remove_demo_database():
            self.say(f"Removed the last demo's database, {settings.DEMO_DATABASE}.")
        self.say(f"Creating the tables in {connection.vendor} ({settings.DATABASES['default']['NAME']}).")
        call_command("migrate", verbosity=0)
        if fresh and PublishedBatch.objects.published_rows():
            raise CommandError(
                "This database has flights already, and the demo removes its own SQLite file only, no other database. "
                "Give an empty one in DATABASE_URL, or continue in this one with --no-fresh."
            )

    def run_flights(self, flights: int) -> None:
        """Publish, consume and check."""
        self.say(f"Publishing {flights:,} real flights of 2013, in transactions of 500.")
        published, publishing = publish_with_bar(self.console, flights)
        self.say(f"Consuming them: 3 groups, 2 processes with 4 threads each. Their log: {self.log}")
        with running_consumers(self.log) as consumers:
            consuming = consume_with_bars(self.console, consumers)
            for line in shown_meanwhile(consumers.wait):
                self.say(line)
        self.say("Checking the results against a direct computation over the file.\n")
        check = check_flights()
        print_report(self.console, check, Timings(published, publishing, consuming))
        if not check.holds:
            self.say(f"\nThe results differ. The consumers' log: {self.log}")
            sys.exit(1)
        self.say("\nTo look at it in the admin: make site")

    def say(self, line: str) -> None:
        """Print a plain line."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
