"""Rehydration: a range of the archive published again (`queuerehydrate`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.contrib.spark.management.base import SparkCommand
from sqlqueue.core.keys import GROUP_LENGTH, checked_name, checked_topic
from sqlqueue.database.log import all_logs, home_log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.topics import planned
from sqlqueue.management import arguments
from sqlqueue.models import ConsumerGroup


class Command(SparkCommand):
    """Publishes a range of the archive, or counts what would be published."""

    help = (
        "Publish archived messages again, to all groups or to one, those of each key in their old order. It may be "
        "killed and run again: a message that is in the log already is not published twice."
    )

    database_help = "only what was archived of this database (default: of all)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument("folder", help="the archive's folder, or its place in an object store")
        parser.add_argument("topic", help="the topic whose messages are published again")
        parser.add_argument("--from", dest="first", type=arguments.offset, help="from this offset")
        parser.add_argument("--to", dest="last", type=arguments.offset, help="up to this offset, included")
        parser.add_argument(
            "--since", default="", help="published at this time (UTC) or later, such as 2013-01-31T18:00"
        )
        parser.add_argument("--until", default="", help="published before this time (UTC)")
        parser.add_argument("--key", help="only messages of this key")
        parser.add_argument("--into", help="the topic to publish to (default: the same)")
        parser.add_argument("--group", default="", help="for this consumer group only (default: for all)")
        parser.add_argument(
            "--label", default="", help="a name for this rehydration: under a new label a range is published once more"
        )
        parser.add_argument(
            "--same-ids",
            action="store_true",
            help="under their old ids, so that only what the log has lost is published again",
        )
        parser.add_argument("--all", action="store_true", help="everything that the archive holds of the topic")
        parser.add_argument(
            "--writers",
            type=arguments.whole(1, arguments.MOST_PROCESSES),
            default=4,
            help="tasks, each with a connection to the database (%(default)s)",
        )
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        """Publish the range, or count it. Raises CommandError and ConfigurationError."""
        topic = checked_topic(options["topic"])
        # A topic that is refused is refused before Spark starts.
        into = planned(home_log(), options["into"] or topic).name
        chosen = {name: options[name] for name in ("first", "last", "since", "until", "key")}
        if not options["all"] and all(value in (None, "") for value in chosen.values()):
            raise CommandError("name a range (--from, --to, --since, --until, --key), or give --all")
        if options["same_ids"] and (options["label"] or options["group"]):
            raise CommandError("--same-ids is for what the log has lost: leave out --label and --group")
        check_group(options["group"], into)
        from sqlqueue.contrib.spark.archive import existing

        existing(options["folder"])
        with self.spark(options) as spark:
            from sqlqueue.contrib.spark.manifest import DamagedArchive
            from sqlqueue.contrib.spark.rehydrate import archived_messages, in_range, rehydrated

            try:
                bounds = {name: chosen[name] for name in ("first", "last", "since", "until")}
                archived = archived_messages(
                    spark, options["folder"], topic, database=options["database"] or "", **bounds
                )
            except DamagedArchive as error:
                raise CommandError(str(error)) from error
            rows = in_range(archived, topic, **chosen)
            rows = rehydrated(rows, group=options["group"], label=options["label"], same_ids=options["same_ids"])
            if options["dry_run"]:
                self.say(f"{topic}: {rows.count():,} messages would be published to {into}")
                return
            self.publish(rows, into, options["writers"])


def check_group(group: str, topic: str) -> None:
    """Raise ConfigurationError for a group that does not read the topic: it would never get the messages."""
    if not group:
        return
    checked_name(group, "group", GROUP_LENGTH)
    groups = (ConsumerGroup.objects.using(log.alias) for log in all_logs())
    if not any(each.filter(topic=topic, consumer_group=group).exists() for each in groups):
        raise ConfigurationError(f"group {group!r} does not read topic {topic!r}, and would never get the messages")
