"""What the pipelines' commands have in common."""

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
from sqlqueue.management.base import migrate_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRY_AGAIN = os.EX_TEMPFAIL  # 75: somebody else is at work; the same command may do later


class SparkCommand(BaseCommand):
    """Parses, starts Spark, calls, prints; exits 0 when all is done, 75 when it may work later, 1 when it failed."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add what every pipeline can be told."""
        parser.add_argument("--dry-run", action="store_true", help="say what would be done; change nothing")
        parser.add_argument(
            "--master", help='where Spark runs, such as "local[4]" (default: as spark-submit says, or here)'
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
        """Do it."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; tell people what went wrong, and programs by the exit code."""
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
            raise CommandError("interrupted: run it again, and it goes on where it stopped", returncode=130) from None

    @contextmanager
    def spark(self, options: dict[str, Any]) -> Iterator[SparkSession]:
        """Start Spark with its progress on the terminal, and stop it."""
        from sqlqueue.spark.session import require_spark, session  # here: without the extra, --help works all the same

        require_spark()
        from pyspark.sql import SparkSession

        started = SparkSession.getActiveSession() is None  # else it is somebody else's to stop
        progress = str(options["verbosity"] > 0).lower()
        conf = {"spark.ui.showConsoleProgress": progress}
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not spark-submit, whose settings are somebody's choice
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
        """Print a line at once."""
        self.stdout.write(line)
        self.stdout.flush()


def setting(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, found, value = text.partition("=")
    if not found:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
