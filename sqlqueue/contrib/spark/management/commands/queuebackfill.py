"""Backfill: the rows of files as messages (`queuebackfill`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from sqlqueue.contrib.spark.management.base import SparkCommand, setting
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH
from sqlqueue.database.log import home_log
from sqlqueue.log.topics import planned
from sqlqueue.management import arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 3


class Command(SparkCommand):
    """Publishes the rows of files, or shows what would be published."""

    help = (
        "Publish the rows of CSV, JSON, Parquet or ORC files to a topic, the rows of a key in the files' order. It may "
        "be killed and run again: an id that the log holds is not published twice."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument("topic", help="the topic to publish to")
        parser.add_argument(
            "paths", nargs="+", help="files, folders or patterns; the driver and all executors must see them"
        )
        parser.add_argument(
            "--format", choices=["csv", "json", "orc", "parquet"], help="default: by the ending of the first name"
        )
        parser.add_argument("--key", help="column of the key; of several (a,b) the values are joined by |")
        parser.add_argument(
            "--id",
            help="column of the id, or several: a,b (default: a hash of key and payload: equal rows are one message)",
        )
        parser.add_argument("--payload", help="columns of the payload: a,b (default: all)")
        parser.add_argument("--time", help="column of a time, for the header `time`")
        parser.add_argument("--order", help="columns that order the rows of a key: a,b (default: the files' order)")
        parser.add_argument(
            "--writers",
            type=arguments.whole(1, arguments.MOST_PROCESSES),
            default=4,
            help="tasks, each with a connection to the database (%(default)s)",
        )
        parser.add_argument(
            "--option",
            action="append",
            default=[],
            type=setting,
            metavar="NAME=VALUE",
            help="an option of the files' format (repeatable), such as nullValue=NA",
        )
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        """Publish the rows, or preview them. Raises CommandError and ConfigurationError."""
        # A topic that is refused is refused before Spark starts.
        topic = planned(home_log(), options["topic"]).name
        with self.spark(options) as spark:
            from pyspark.errors import AnalysisException

            from sqlqueue.contrib.spark.backfill import as_messages, no_time
            from sqlqueue.contrib.spark.files import read_files, refuse_unfit

            try:
                rows = read_files(spark, options["paths"], format_of(options), dict(options["option"]))
                key, id, payload = (columns(options[name]) for name in ("key", "id", "payload"))
                messages = as_messages(
                    rows,
                    key=key,
                    id=id,
                    payload=payload,
                    time=options["time"] or "",
                    order=columns(options["order"]),
                )
            except AnalysisException as error:  # a missing file or column: the message says which there are
                raise CommandError(str(error)) from error
            refuse_unfit(rows, no_time(rows, options["time"] or ""))
            if options["dry_run"]:
                self.preview(messages)
                return
            self.publish(messages, topic, options["writers"])

    def preview(self, messages: DataFrame) -> None:
        """Count the rows as messages, and print some of them."""
        from sqlqueue.contrib.spark.backfill import totals

        counted = totals(messages)
        self.say("{rows:,} rows would be {ids:,} messages with {keys:,} keys, for example:".format(**counted))
        for row in messages.limit(SHOWN).toLocalIterator():
            self.say(f"  key={row['key']!r} id={row['id']!r} headers={row['headers']} payload={row['payload']}")
        for name, longest, most in (
            ("id", counted["longest_id"], ID_LENGTH),
            ("key", counted["longest_key"], KEY_LENGTH),
        ):
            if (longest or 0) > most:
                raise CommandError(f"the longest {name} has {longest} characters, more than {most}")


def columns(text: str | None) -> list[str]:
    """Return the names in a list such as a,b."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def format_of(options: dict[str, Any]) -> str:
    """Return the files' format: the given one, or that of the first name's ending. Raises CommandError."""
    if options["format"]:
        return str(options["format"])
    for name in ("csv", "json", "orc", "parquet"):
        if any(options["paths"][0].endswith(ending) for ending in (f".{name}", f".{name}.gz", f".{name}.bz2")):
            return name
    raise CommandError(f"the name {options['paths'][0]} has no ending of a known format: give --format")
