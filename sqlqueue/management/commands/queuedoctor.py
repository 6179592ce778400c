"""The doctor (`queuedoctor`)."""

from __future__ import annotations

import platform
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import django
from django.core import checks

import sqlqueue
from sqlqueue.checks import TAG
from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Consumer, registry
from sqlqueue.core.logfmt import printable
from sqlqueue.core.settings import MOST_THREADS
from sqlqueue.database.log import Log
from sqlqueue.database.server_checks import describe
from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.doctor import OK, Diagnosis, Diagnostics, examine
from sqlqueue.stats.findings import ERROR, NOTE, WARNING

PROCESSES, THREADS = arguments.whole(1, arguments.MOST_PROCESSES), arguments.whole(1, MOST_THREADS)
HAS_ERRORS, HAS_WARNINGS = 1, 2


class Command(QueueCommand):
    """Runs the system checks, reads the diagnostics, and prints the doctor's findings."""

    every_database = ("",)
    help = "Examine the settings, the database and the queue: say what is wrong, and what to do about it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument(
            "--processes",
            type=PROCESSES,
            help="how many consumer processes will run (default: how many are alive)",
        )
        parser.add_argument(
            "--threads",
            type=THREADS,
            help="handler threads of each (default SQLQUEUE['THREADS'])",
        )
        parser.add_argument("--strict", action="store_true", help="exit with 2 if there are warnings")
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Examine, print, and exit with 1 on errors, 2 on warnings with --strict."""
        log = None if settings.problems() else self.log
        findings = list(_check_findings(log))
        # The versions and the server that a bug report names; no secrets.
        about = {"sqlqueue": sqlqueue.__version__, "Django": django.__version__, "Python": platform.python_version()}
        if log is not None:
            diagnostics = Diagnostics(log, _handlers(), options["processes"], options["threads"])
            findings += examine(diagnostics)
            about |= {"database": describe(log), "isolation": diagnostics.limits.isolation}
        levels = [finding.level for finding in findings]
        if options["json"]:
            counts = {f"{level}s": levels.count(level) for level in (ERROR, WARNING, NOTE)}
            self.as_json({**about, **counts, "findings": [finding._asdict() for finding in findings]})
        else:
            self.say(", ".join(f"{name} {value}" for name, value in about.items()))
            for finding in findings:
                self._print(finding)
        if ERROR in levels:
            sys.exit(HAS_ERRORS)
        if WARNING in levels and options["strict"]:
            sys.exit(HAS_WARNINGS)

    def _print(self, finding: Diagnosis) -> None:
        style = {
            ERROR: self.style.ERROR,
            WARNING: self.style.WARNING,
            NOTE: self.style.NOTICE,
            OK: self.style.SUCCESS,
        }
        self.stdout.write(
            f"{style[finding.level](f'{finding.level:<8}')} {printable(f'{finding.about}: {finding.text}')}"
        )
        if finding.hint:
            self.stdout.write(f"         → {printable(finding.hint)}")
        if finding.command:
            self.stdout.write(f"           {printable(finding.command)}")


def _check_findings(log: Log | None) -> Iterator[Diagnosis]:
    """Yield a finding for each message of the system checks, those of the database included. log: None for wrong
    settings."""
    databases = [] if log is None else [log.alias]
    for message in checks.run_checks(tags=[TAG], databases=databases):
        level = ERROR if message.level >= checks.ERROR else WARNING if message.level >= checks.WARNING else NOTE
        yield Diagnosis(level, f"check {message.id}", message.msg, message.hint or "")


def _handlers() -> list[Consumer]:
    try:
        registry.discover()
    except Exception:  # a system check reports it
        return []
    return [consumer for _, consumer in sorted(registry.consumers.items())]
