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
from sqlqueue.exceptions import HorizonUnknown, LeaseLost, SqlqueueError
from sqlqueue.management.arguments import refuse_broken_texts
from sqlqueue.management.base import migrate_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRY_AGAIN = os.EX_TEMPFAIL  # 75: another process is at work; the same command may succeed later


class SparkCommand(BaseCommand):
    """A command that runs Spark. It exits with 0 when done, 75 when a later run may succeed, 1 when it failed."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of every pipeline."""
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
            if (first := migrate_first(settings.DATABASE, error)) is None:
                raise
            raise first from error
        except KeyboardInterrupt:
            raise CommandError("interrupted: run it again to continue where it stopped", returncode=130) from None

    @contextmanager
    def spark(self, options: dict[str, Any]) -> Iterator[SparkSession]:
        """Yield a Spark session, with its progress on the terminal; stop it at the end unless it ran before."""
        from sqlqueue.spark.session import require_spark, session  # here, so that --help works without the extra

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
