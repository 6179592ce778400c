"""Publish files."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH, checked_topic
from sqlqueue.database import faults
from sqlqueue.database.horizon import highest_offset
from sqlqueue.management.spark import SparkCommand, setting
from sqlqueue.models import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN = 3


class Command(SparkCommand):
    """Parses, calls, prints."""

    help = (
        "Publish the rows of CSV, JSON, Parquet or ORC files to a topic, a key's rows in the files' order. It may be "
        "killed and run again: an id that the log holds is not published twice."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("topic", help="where to publish")
        parser.add_argument(
            "paths", nargs="+", help="files, folders or patterns; the driver and all executors see them"
        )
        parser.add_argument("--format", choices=["csv", "json", "orc", "parquet"], help="default: as the name ends")
        parser.add_argument("--key", help="column of the key; several, joined by |: a,b")
        parser.add_argument(
            "--id",
            help="column of the id, or several: a,b (default: a hash of key and payload, so equal rows are one)",
        )
        parser.add_argument("--payload", help="columns of the payload: a,b (default: all)")
        parser.add_argument("--time", help="column of a time, for the header `time`")
        parser.add_argument("--order", help="columns that say the order within a key: a,b (default: the files' order)")
        parser.add_argument(
            "--writers", type=int, default=4, help="tasks, each with a connection to the database (%(default)s)"
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
        """Publish, or survey what would be."""
        topic = checked_topic(options["topic"])
        if options["writers"] < 1:
            raise CommandError("--writers must be at least 1")
        with self.spark(options) as spark:
            from pyspark.errors import AnalysisException

            from sqlqueue.spark.backfill import as_messages, in_order
            from sqlqueue.spark.files import read_files
            from sqlqueue.spark.publishing import publish

            try:
                rows = read_files(spark, options["paths"], form_of(options), dict(options["option"]))
                messages = as_messages(
                    rows,
                    key=columns(options["key"]),
                    id=columns(options["id"]),
                    payload=columns(options["payload"]),
                    time=options["time"] or "",
                    order=columns(options["order"]),
                )
            except AnalysisException as error:  # no such file, no such column: Spark says which there are
                raise CommandError(str(error)) from error
            if options["dry_run"]:
                self.tell(messages)
                return
            before = highest_offset(settings.DATABASE)
            sent = publish(in_order(messages, options["writers"]), topic)
            faults.close_lost_connections()  # Spark may have taken longer than an idle one lasts
            new = Message.objects.using(settings.DATABASE).filter(topic=topic, offset__gt=before).count()
            self.say(f"{topic}: {sent:,} rows, {new:,} new messages")

    def tell(self, messages: DataFrame) -> None:
        """Survey the rows as messages, and show some."""
        from sqlqueue.spark.backfill import survey

        found = survey(messages)
        self.say("{rows:,} rows would be {ids:,} messages with {keys:,} keys, for example:".format(**found))
        for row in messages.limit(SHOWN).toLocalIterator():
            self.say(f"  key={row['key']!r} id={row['id']!r} headers={row['headers']} payload={row['payload']}")
        for name, longest, most in (("id", found["longest_id"], ID_LENGTH), ("key", found["longest_key"], KEY_LENGTH)):
            if (longest or 0) > most:
                raise CommandError(f"an {name} has {longest} characters; {most} is the most")


def columns(text: str | None) -> list[str]:
    """Return the names in a list like a,b."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def form_of(options: dict[str, Any]) -> str:
    """Return the files' format: the one that was given, or the one that the first name ends with."""
    if options["format"]:
        return str(options["format"])
    for form in ("csv", "json", "orc", "parquet"):
        if any(options["paths"][0].endswith(ending) for ending in (f".{form}", f".{form}.gz", f".{form}.bz2")):
            return form
    raise CommandError(f"the name of {options['paths'][0]} does not say what it is: give --format")
