"""What the commands of the pipelines share: options of Spark, its session, and exit codes."""

from __future__ import annotations

import os
from abc import abstractmethod
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database import retries
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log, all_logs, home_log, logs_of
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown, LeaseLost, SqlqueueError
from sqlqueue.log.topics import existing
from sqlqueue.management.arguments import chosen, refuse_broken_texts
from sqlqueue.management.base import migrate_first
from sqlqueue.models import Message, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRY_AGAIN = os.EX_TEMPFAIL  # 75: another process is at work; the same command may succeed later


class SparkCommand(BaseCommand):
    """A command that runs Spark. It exits with 0 when done, 75 when a later run may succeed, 1 when it failed."""

    database_help = ""  # of the option --database; "": it has none
    _log: Log | None = None

    @property
    def log(self) -> Log:
        """The log that is worked on."""
        return self._log or home_log()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of every pipeline."""
        if self.database_help:
            parser.add_argument("--database", metavar="NAME", help=self.database_help)
        parser.add_argument("--dry-run", action="store_true", help="say what would be done; change nothing")
        parser.add_argument(
            "--master", help='where Spark runs, such as "local[4]" (default: what spark-submit says, else this machine)'
        )
        parser.add_argument(
            "--conf",
            action="append",
            default=[],
            type=setting,
            metavar="NAME=VALUE",
            help="a setting of Spark's (repeatable), such as spark.driver.memory=4g",
        )

    @abstractmethod
    def run(self, options: dict[str, Any]) -> None:
        """Carry out the command. Raises CommandError, and errors of sqlqueue and of the database."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command and turn errors into messages and exit codes."""
        refuse_broken_texts(options)
        try:
            self.run(options)
        except (LeaseLost, HorizonUnknown) as error:
            raise CommandError(str(error), returncode=TRY_AGAIN) from error
        except SqlqueueError as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            if (first := migrate_first(self.log, error)) is None:
                raise
            raise first from error
        except KeyboardInterrupt:
            raise CommandError("interrupted: run it again to continue where it stopped", returncode=130) from None

    def on_databases(self, options: dict[str, Any]) -> Iterator[str]:
        """Work on each database in turn, and yield their aliases; once, and "", if there is one log only."""
        for log in chosen(options, ("",), ()):
            self._log = log
            if log.label:
                self.say(f"database {log.label}")
            yield log.label

    def topics_here(self, named: list[str]) -> list[str]:
        """Return those of the named topics (all, if there is none) that the database which is worked on has messages
        of.

        Raises ConfigurationError for a name of which no database knows a topic.
        """
        here = self.log
        if named and settings.several and (unknown := sorted({*named} - self._known(named))):
            raise ConfigurationError(f"there is no topic {unknown[0]!r}: nothing was ever published to it")
        if named:
            return [name for name in named if not settings.several or here in logs_of(name)]
        rows = Topic.objects.using(here.alias).order_by("name").exclude(name__endswith=DEAD_LETTER_SUFFIX)
        return list(rows.values_list("name", flat=True))

    @staticmethod
    def _known(names: list[str]) -> set[str]:
        return {name for log in all_logs() for name in existing(log, names)}

    @contextmanager
    def spark(self, options: dict[str, Any]) -> Iterator[SparkSession]:
        """Yield a Spark session, with its progress on the terminal; stop it at the end unless it ran before."""
        from sqlqueue.contrib.spark.session import (  # here, so that --help works without the extra
            require_spark,
            session,
        )

        require_spark()
        from pyspark.sql import SparkSession

        started = SparkSession.getActiveSession() is None  # a session that runs already is its owner's to stop
        progress = str(options["verbosity"] > 0).lower()
        conf = {"spark.ui.showConsoleProgress": progress}
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit's own settings are left alone
            conf["spark.sql.shuffle.partitions"] = "8"
        conf.update(options["conf"])
        if options["master"]:
            conf["spark.master"] = options["master"]
        spark = session(f"sqlqueue {self.__module__.rpartition('.')[2]}", **conf)
        try:
            yield spark
        finally:
            if started:
                spark.stop()

    def publish(self, messages: DataFrame, topic: str, writers: int) -> None:
        """Publish messages in their order, and say how many of them are new, on all databases."""
        from sqlqueue.contrib.spark.backfill import in_order, publish

        before = {log: highest_offset(log) for log in all_logs()}
        sent = publish(in_order(messages, writers), topic)
        retries.close_lost_connections()  # Spark may have taken longer than an idle connection lasts
        newer = (Message.objects.using(log.alias).filter(topic=topic, offset__gt=low) for log, low in before.items())
        self.say(f"{topic}: {sent:,} rows, {sum(rows.count() for rows in newer):,} new messages")

    def say(self, line: str) -> None:
        """Print a line, and flush it at once."""
        self.stdout.write(line)
        self.stdout.flush()


def setting(text: str) -> tuple[str, str]:
    """Return name and value of a text such as NAME=VALUE; raises ArgumentTypeError."""
    name, found, value = text.partition("=")
    if not found:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
