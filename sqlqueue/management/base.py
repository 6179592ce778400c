"""What the queue's commands have in common: whom they ask, how they end, and what they print with."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS
from django.db import Error as DatabaseError

from sqlqueue.conf import settings
from sqlqueue.core.lines import printable
from sqlqueue.database import faults
from sqlqueue.database.tables import pending_migrations
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.management import terminal

# The exit codes beside 0 (done), 1 (refused or failed: the reason is on standard error) and 2 (wrong arguments).
DECLINED = 3  # the question was not answered with yes: nothing was done
UNREACHABLE = 4  # the database does not answer
INTERRUPTED = 130


def migrate_first(alias: str, error: DatabaseError) -> CommandError | None:
    """Return what to say of an error that comes of tables which are not there, or not as this version needs them."""
    if faults.classify(error) is faults.Fault.OTHER and pending_migrations(alias):
        text = f"the queue's tables in {alias!r} are not up to date: run `python manage.py migrate sqlqueue`"
        return CommandError(text if alias == DEFAULT_DB_ALIAS else f"{text[:-1]} --database {alias}`")
    return None


class VerbParser(CommandParser):
    """A verb's arguments, behind which Django's common options may stand as well as before them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        common = self.add_argument_group("common options, as of every command")
        common.add_argument("-v", "--verbosity", type=int, choices=range(4), default=SUPPRESS)
        for name in ("--settings", "--pythonpath"):
            common.add_argument(name, default=SUPPRESS)
        for name in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
            common.add_argument(name, action="store_true", default=SUPPRESS)


class QueueCommand(BaseCommand):
    """A command on the queue's database, SQLQUEUE["DATABASE"]. What sqlqueue refuses is one line on standard error."""

    requires_system_checks: list[str] = []

    @property
    def alias(self) -> str:
        """The database's alias."""
        return str(settings.DATABASE)

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run; turn what can go wrong into an exit code. A reader who has had enough (`| head`) is no failure."""
        try:
            result = super().execute(*args, **options)
            self.stdout.flush()
            return result
        except SqlqueueError as error:
            raise CommandError(printable(str(error))) from error
        except CommandError as error:
            raise CommandError(printable(str(error), keep="\n"), returncode=error.returncode) from error
        except DatabaseError as error:
            if (first := migrate_first(self.alias, error)) is not None:
                raise first from error
            if faults.classify(error) is not faults.Fault.GONE:
                raise
            text = f"the database {settings.DATABASE!r} does not answer: {error}"
            raise CommandError(printable(text), returncode=UNREACHABLE) from error
        except BrokenPipeError:
            # What is still in the buffer would fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    # -- words of several commands ------------------------------------------------------------------------------------

    def add_verbs(self, parser: ArgumentParser) -> Any:
        """Return what verbs are added to; the chosen one is the option `verb`."""
        return parser.add_subparsers(dest="verb", required=True, parser_class=VerbParser)

    def add_json(self, parser: ArgumentParser) -> None:
        """Add --json."""
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def add_caution(self, parser: ArgumentParser) -> None:
        """Add --dry-run and --no-input."""
        parser.add_argument("--dry-run", action="store_true", help="count, say what would be done, and do nothing")
        parser.add_argument("--no-input", "--noinput", action="store_true", help="do it without asking")

    def confirm(self, question: str, options: dict[str, Any]) -> None:
        """Ask, unless --no-input; without a yes, end with nothing done."""
        if options["no_input"]:
            return
        try:
            answer = input(f"{printable(question)} [y/N] ")
        except EOFError:
            answer = ""
            self.stdout.write("")
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("nothing was done (--no-input does it without asking)", returncode=DECLINED)

    # -- printing -----------------------------------------------------------------------------------------------------

    def say(self, text: str = "", done: bool = False) -> None:
        """Print a line; done: in the colour of success. What a terminal could obey is escaped, line ends too: it may be
        a message's."""
        text = printable(text)
        self.stdout.write(self.style.SUCCESS(text) if done else text)

    def note(self, text: str) -> None:
        """Print a line for the person, beside what is printed for scripts."""
        self.stderr.write(printable(text), self.style.NOTICE)

    def say_lines(self, text: str) -> None:
        """Print a text of several lines."""
        self.stdout.write(printable(text, keep="\n"))

    def as_json(self, value: Any, indent: int | None = 2) -> None:
        """Print a value as JSON."""
        self.say_lines(json.dumps(value, default=_plain, ensure_ascii=False, indent=indent))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows under their columns' names."""
        self.stdout.write(
            terminal.table(columns, [[printable(str(cell)) for cell in row] for row in rows], self.stdout)
        )

    def progress(self, what: str, total: int | None = None) -> terminal.Progress:
        """Return a progress bar on standard error, if that is a terminal; `with` shows it."""
        return terminal.Progress(what, total, self.stderr)

    def pause(self, seconds: float) -> None:
        """Wait; raise BrokenPipeError if whoever reads the output has gone."""
        self.stdout.flush()
        try:
            reader = self.stdout.fileno()
        except (AttributeError, OSError):  # a test's: it has no file
            time.sleep(seconds)
            return
        poll = select.poll()
        poll.register(reader, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(seconds * 1000)):
            raise BrokenPipeError


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} is not for JSON")
