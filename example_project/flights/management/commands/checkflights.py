"""The check of the consumed flights (`checkflights`)."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand
from rich.console import Console

from example_project.flights.check import check_flights
from example_project.flights.report import print_report


class Command(BaseCommand):
    help = (
        "Compares the groups' results for the published flights with a direct computation; exits with 1 if they differ."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        check = check_flights()
        print_report(Console(file=options.get("stdout")), check)
        if not check.holds:
            sys.exit(1)
