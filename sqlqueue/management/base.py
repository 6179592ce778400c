"""What the queue's commands share: operations, confirmation, exit codes, and printing."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS
from django.db import Error as DatabaseError
from django.utils import translation

from sqlqueue.conf import settings
from sqlqueue.core.codec import indented_or_compact
from sqlqueue.core.logfmt import printable
from sqlqueue.database import retries
from sqlqueue.database.log import Log, all_logs, home_log, reading_log
from sqlqueue.database.tables import pending_migrations
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.management import terminal
from sqlqueue.management.arguments import chosen, refuse_broken_texts
from sqlqueue.stats.processes import missing_tables, newest_heartbeat
from sqlqueue.stats.texts import duration

# Exit codes besides 0 (done), 1 (refused or failed, with the reason on standard error) and 2 (wrong arguments).
DECLINED = 3  # the operator did not answer yes: nothing was done
UNREACHABLE = 4  # the database does not answer, or cannot write
INTERRUPTED = 130


def migrate_first(log: Log, error: DatabaseError) -> CommandError | None:
    """Return the CommandError for a database error that missing or outdated tables cause; None for any other cause."""
    if retries.classify(error) in (retries.ErrorKind.SCHEMA, retries.ErrorKind.OTHER) and pending_migrations(log):
        if settings.is_replica(log.alias):
            return CommandError(missing_tables(log))
        text = f"the queue's tables in {log.alias!r} are not up to date: run `python manage.py migrate sqlqueue`"
        return CommandError(text if log.alias == DEFAULT_DB_ALIAS else f"{text[:-1]} --database {log.alias}`")
    return None


class OperationParser(CommandParser):
    """The parser of one operation of a command; it accepts Django's common options, too, after the operation's name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        common = self.add_argument_group("common options of every command")
        common.add_argument("-v", "--verbosity", type=int, choices=range(4), default=SUPPRESS)
        for name in ("--settings", "--pythonpath", "--database"):
            common.add_argument(name, default=SUPPRESS)
        for name in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
            common.add_argument(name, action="store_true", default=SUPPRESS)


class QueueCommand(BaseCommand):
    """A command on the queue's database, SQLQUEUE["DATABASE"], or or on that of `--database`, or those of its topic.
    An error of sqlqueue is one line on standard error."""

    requires_system_checks: list[str] = []
    # Operations ("": of a command without them) that are done on every database if none is named, and those that are
    # done on DATABASE's, or find the databases themselves. Of any other, the operator names the database.
    every_database: Collection[str] = ()
    home_database: Collection[str] = ()
    on_several = False  # whether it is done on one database after another: one with nothing to do is no error then
    json = False  # whether it prints JSON, and nothing else on standard output
    _log: Log | None = None
    _replica: Log | None = None

    @property
    def log(self) -> Log:
        """The log that the command works on."""
        return self._log or home_log()

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        """Add the option --database."""
        parser = super().create_parser(prog_name, subcommand, **options)
        parser.add_argument("--database", metavar="ALIAS", help="on this database, if there are several logs")
        return parser

    @property
    def asked(self) -> Log:
        """The log that an error comes from: the queue's, or the replica if the command reads that."""
        return self._replica or self.log

    def _failing(self) -> Log:
        """Return the log that an error comes from. A command of no single one asks others for its message, too."""
        for log in all_logs() if self._log == home_log() and settings.several and self._replica is None else ():
            try:
                if pending_migrations(log):
                    return log
            except DatabaseError:
                return log
        return self.asked

    def reading_log(self) -> Log:
        """Return the log for a command that only looks, and say so if it is a replica's. Nothing that changes the
        queue may follow from what is read there."""
        log = reading_log(self.log)
        if settings.is_replica(log.alias):
            self._replica = log
            age = newest_heartbeat(log)
            beat = "it has no heartbeat" if age is None else f"its newest heartbeat is {duration(age)} old"
            self.note(f"Read from the replica {log.alias!r}, which may be behind: {beat}.")
        return log

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command and turn errors into exit codes. A closed pipe (`| head`) is not an error."""
        try:
            refuse_broken_texts(options)
            self.json = bool(options.get("json"))
            with translation.override(None):  # commands speak English, as their scripts expect
                result = self._on_databases(*args, **options)
            self.stdout.flush()
            return result
        except SqlqueueError as error:
            raise CommandError(printable(str(error))) from error
        except CommandError as error:
            raise CommandError(printable(str(error), keep="\n"), returncode=error.returncode) from error
        except DatabaseError as error:
            failing = self._failing()
            if (first := migrate_first(failing, error)) is not None:
                raise first from error
            if retries.classify(error) is not retries.ErrorKind.GONE:
                raise
            text = f"the database {failing.alias!r} does not answer, or cannot write: {error}"
            raise CommandError(printable(text), returncode=UNREACHABLE) from error
        except BrokenPipeError:
            # Python flushes what is left in the buffer when it exits, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    def _on_databases(self, *args: Any, **options: Any) -> Any:
        if settings.problems():
            return super().execute(*args, **options)
        logs = chosen(options, self.every_database, self.home_database)
        if len(logs) == 1:
            self._log = logs[0]
            return super().execute(*args, **options)
        if options.get("json"):
            names = ", ".join(log.label for log in logs)
            raise CommandError(f"--json shows one database: say which with --database: {names}")
        failed: Exception | None = None
        self.on_several = True
        for log in logs:
            self._log = log
            try:
                (options.get("stdout") or self.stdout).write(f"database {log.label}\n")
                super().execute(*args, **options)
            except DatabaseError as error:
                if retries.classify(error) is not retries.ErrorKind.GONE:
                    raise
                self.note(f"database {log.label!r} does not answer, or cannot write: {error}")
                failed = error
        if failed is not None:
            raise CommandError("not every database has answered", returncode=UNREACHABLE)
        return None

    # -- operations and questions -------------------------------------------------------------------------------------

    def operations(self, parser: ArgumentParser) -> Any:
        """Return the subparsers to add operations to, by `operation`."""
        return parser.add_subparsers(dest="operation", required=True, parser_class=OperationParser)

    def operation(
        self,
        subparsers: Any,
        name: str,
        act: Callable[[dict[str, Any]], None],
        text: str,
        json: bool = False,
        caution: bool = False,
    ) -> ArgumentParser:
        """Add an operation that `act` carries out, and return its parser. text: its help; json, caution:
        whether it has the options --json, and --dry-run and --no-input."""
        parser: ArgumentParser = subparsers.add_parser(name, help=text)
        parser.set_defaults(act=act)
        if json:
            self.add_json(parser)
        if caution:
            self.add_caution(parser)
        return parser

    def handle(self, *args: Any, **options: Any) -> None:
        """Carry out the chosen operation."""
        options["act"](options)

    def add_json(self, parser: ArgumentParser) -> None:
        """Add the option --json."""
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def add_caution(self, parser: ArgumentParser) -> None:
        """Add the options --dry-run and --no-input."""
        parser.add_argument("--dry-run", action="store_true", help="count, say what would be done, and do nothing")
        parser.add_argument("--no-input", "--noinput", action="store_true", help="do it without asking")

    def proceed(
        self, options: dict[str, Any], question: str, nothing: str = "", preview: Mapping[str, Any] | None = None
    ) -> bool:
        """Tell whether to do what was previewed: ask the operator, unless --no-input is given.

        nothing: what is said if there is nothing to do; preview: what --json prints, with `done`. Raises CommandError
        (exit code 3) if the answer is not yes, and if --json would need a question.
        """
        if self.json:
            if not (options["no_input"] or options["dry_run"]):
                raise CommandError("--json needs --no-input or --dry-run: it asks no questions")
            if nothing or options["dry_run"]:
                self.as_json({**(preview or {}), "done": False})
                return False
        elif nothing or options["dry_run"]:
            self.say(nothing or "Nothing was done.")
            return False
        if question and not options["no_input"]:
            self._ask(question)
        return True

    def done(self, text: str, **result: Any) -> None:
        """Say that it is done; with --json print the result, with `done`."""
        if self.json:
            self.as_json({**result, "done": True})
        else:
            self.say(text, done=True)

    def _ask(self, question: str) -> None:
        try:
            answer = input(f"{printable(question)} [y/N] ")
        except EOFError:
            answer = ""
            self.stdout.write("")
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("nothing was done (--no-input does it without asking)", returncode=DECLINED)

    # -- printing -----------------------------------------------------------------------------------------------------

    def say(self, text: str = "", done: bool = False) -> None:
        """Print a line, unless JSON is printed; done: in the colour of success.

        Control characters and line ends are escaped, since the text may come from a message.
        """
        if self.json:
            return
        text = printable(text)
        self.stdout.write(self.style.SUCCESS(text) if done else text)

    def note(self, text: str) -> None:
        """Print a line on standard error, apart from the output that scripts read."""
        self.stderr.write(printable(text), self.style.NOTICE)

    def say_lines(self, text: str) -> None:
        """Print a text of several lines; other control characters are escaped."""
        self.stdout.write(printable(text, keep="\n"))

    def as_json(self, value: Any, one_line: bool = False) -> None:
        """Print a value as JSON, indented unless one line is wanted or that makes it very long; dataclasses become
        objects, and times ISO 8601."""
        if one_line:
            self.say_lines(json.dumps(value, default=_plain, ensure_ascii=False))
        else:
            self.say_lines(indented_or_compact(value, default=_plain))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows under their columns' names, unless JSON is printed."""
        if self.json:
            return
        self.stdout.write(terminal.table(columns, [[printable(str(cell)) for cell in row] for row in rows]))

    def progress(self, what: str, total: int | None = None) -> terminal.Progress:
        """Return a progress bar, to be used with `with`; it shows on standard error if that is a terminal."""
        return terminal.Progress(what, total, self.stderr)

    def pause(self, seconds: float) -> None:
        """Wait for so many seconds; raise BrokenPipeError as soon as the reader of the output has closed the pipe."""
        self.stdout.flush()
        try:
            pipe = self.stdout.fileno()
        except (AttributeError, OSError):  # a test's output, which is not a file
            time.sleep(seconds)
            return
        poll = select.poll()
        poll.register(pipe, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(seconds * 1000)):
            raise BrokenPipeError


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} cannot be written as JSON")
