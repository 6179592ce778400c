"""The site with its consumers (`make site`)."""

from __future__ import annotations

import os
import socket
import time
from subprocess import Popen
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from example_project.flights.children import child, leaving_on_sigterm
from example_project.flights.demo_database import DemoDatabaseInUse, demo_in_use
from example_project.flights.operators import first_operator
from example_project.refunds.asking import ask_for_refunds

HOST = "127.0.0.1"
POLL_SECONDS = 0.2


class Command(BaseCommand):
    help = "Runs the site on 127.0.0.1 (the environment's PORT, 8000) and the consumers side by side, until Ctrl-C."
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:
        port = os.environ.get("PORT", "8000")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise CommandError(f"PORT must be a number between 1 and 65535, not {port!r}.")
        if _answers(int(port)):
            raise CommandError(f"Port {port} is in use. Choose another: PORT=8001 make site")
        try:
            with leaving_on_sigterm(), demo_in_use():
                call_command("migrate", verbosity=0)
                self.run_both(int(port))
        except DemoDatabaseInUse as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("Ended.")

    def run_both(self, port: int) -> None:
        """Run the server and the consumers until this process is stopped. Raises CommandError if one of them ends."""
        operator = first_operator()
        with (
            child("runserver", "--noreload", f"{HOST}:{port}") as server,
            child("runconsumers", DEBUG="false") as consumers,
        ):
            children = {"server": server, "consumers": consumers}
            while not _answers(port) and not _ended(children):
                time.sleep(POLL_SECONDS)
            if not _ended(children):
                self.greet(port, operator)
            while not (ended := _ended(children)):
                time.sleep(POLL_SECONDS)
        raise CommandError(f"The {ended} process ended by itself, with exit code {children[ended].returncode}.")

    def greet(self, port: int, operator: tuple[str, str] | None) -> None:
        """Print the site's addresses and how to log in."""
        ask_for_refunds()
        self.stdout.write(f"\nHome page: http://{HOST}:{port}/\nAdmin:     http://{HOST}:{port}/admin/")
        if operator:
            self.stdout.write("User:      {}\nPassword:  {} (shown only now)".format(*operator))
        else:
            self.stdout.write(
                "Log in as the superuser that exists already (manage.py changepassword sets its password)."
            )
        self.stdout.write("Ctrl-C ends both the server and the consumers.\n")


def _answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((HOST, port)) == 0


def _ended(children: dict[str, Popen[bytes]]) -> str:
    """Return the name of a process that has ended, or \"\"."""
    return next((name for name, process in children.items() if process.poll() is not None), "")
