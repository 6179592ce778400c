"""Examine everything, and say what to do."""

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
from sqlqueue.conf import MOST_THREADS, settings
from sqlqueue.consumers.registry import registry
from sqlqueue.core.lines import printable
from sqlqueue.database.server import describe
from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand
from sqlqueue.observe.doctor import ERROR, NOTE, OK, WARNING, Finding, examine
from sqlqueue.observe.facts import Facts, Handler, read

PROCESSES, THREADS = arguments.whole(1, arguments.MOST_PROCESSES), arguments.whole(1, MOST_THREADS)
HAS_ERRORS, HAS_WARNINGS = 1, 2


class Command(QueueCommand):
    """Runs the system checks, reads the facts, and prints what the doctor says to them."""

    help = "Examine the settings, the database and the queue: what is wrong, and what to do about it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--processes",
            type=PROCESSES,
            help="consumer processes that are to run (default: those alive)",
        )
        parser.add_argument(
            "--threads",
            type=THREADS,
            help="handler threads of each (default SQLQUEUE['THREADS'])",
        )
        parser.add_argument("--strict", action="store_true", help="end with 2 if there are warnings")
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Examine, print, and end with 1 on errors, 2 on warnings with --strict."""
        findings = list(_of_the_checks())
        facts = None
        if not settings.problems():
            facts = read(self.alias, _handlers(), options["processes"], options["threads"])
            findings += examine(facts)
        levels = [finding.level for finding in findings]
        if options["json"]:
            counts = {f"{level}s": levels.count(level) for level in (ERROR, WARNING, NOTE)}
            self.as_json({**_about(facts), **counts, "findings": [finding._asdict() for finding in findings]})
        else:
            self.say(", ".join(f"{name} {value}" for name, value in _about(facts).items()))
            for finding in findings:
                self._print(finding)
        if ERROR in levels:
            sys.exit(HAS_ERRORS)
        if WARNING in levels and options["strict"]:
            sys.exit(HAS_WARNINGS)

    def _print(self, finding: Finding) -> None:
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


def _about(facts: Facts | None) -> dict[str, str]:
    """Return what people are asked for first. Nothing secret."""
    about = {"sqlqueue": sqlqueue.__version__, "Django": django.__version__, "Python": platform.python_version()}
    if facts is None:
        return about
    return {**about, "database": describe(settings.DATABASE), "isolation": facts.limits.isolation}


def _of_the_checks() -> Iterator[Finding]:
    """Yield what the system checks say, those of the database with them."""
    databases = [] if settings.problems() else [settings.DATABASE]
    found = checks.run_checks(tags=[TAG], databases=databases)
    for message in found:
        level = ERROR if message.level >= checks.ERROR else WARNING if message.level >= checks.WARNING else NOTE
        yield Finding(level, f"check {message.id}", message.msg, message.hint or "")
    if not found:
        yield Finding(OK, "checks", "the settings, the handlers and the server have none against them")


def _handlers() -> list[Handler]:
    try:
        registry.discover()
    except Exception:  # a check has told it
        return []
    return [
        Handler(consumer.name, consumer.topic, consumer.group, consumer.manners.visibility_timeout)
        for _, consumer in sorted(registry.consumers.items())
    ]
