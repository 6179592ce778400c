"""Let groups read again what the log still holds."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.management import arguments, moving
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.places import HELP, known_groups, known_topic, offset_above


class Command(QueueCommand):
    """Moves groups back; forward, over what they have yet to read, is `queuegroup reset`."""

    help = "Deliver a topic's messages again, to one group or all, from an offset or a time on."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("topic")
        parser.add_argument("--from", dest="start", required=True, metavar="WHERE", help=f"{HELP}, or earliest")
        parser.add_argument("--group", action="append", default=[], help="this group (repeatable)")
        parser.add_argument("--all-groups", action="store_true", help="every group of the topic")
        parser.add_argument("--partition", type=arguments.partition, help="only this partition")
        self.add_caution(parser)
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Count, ask, replay."""
        if bool(options["group"]) == options["all_groups"]:
            raise CommandError("say which: --group NAME (repeatable), or --all-groups")
        topic = known_topic(self.alias, options["topic"])
        groups = known_groups(self.alias, topic.name, options["group"])
        partition = moving.checked_partition(topic, options["partition"])
        target = offset_above(self.alias, options["start"])
        counts = moving.count(self.alias, topic.name, groups, target, partition)
        if not options["json"]:
            moving.show(self, counts, target)
        ahead = [group for group, count in counts.items() if count.skipped]
        if ahead:
            raise CommandError(
                f"group {ahead[0]!r} has not come so far: this would skip what it has yet to read."
                " `queuegroup reset` does that, if it is meant."
            )
        again = sum(count.again for count in counts.values())
        if again and not options["dry_run"]:
            if not options["json"]:
                self.confirm(f"Deliver {again} messages again?", options)
            elif not options["no_input"]:
                raise CommandError("--json needs --no-input or --dry-run: there is nobody to ask")
            moving.move(self, topic.name, counts, target, partition)
        if options["json"]:
            self.as_json(moving.as_plain(counts, target, bool(again) and not options["dry_run"]))
        elif not again:
            self.say("There is nothing to deliver again.")
        elif options["dry_run"]:
            self.say("Nothing was done.")
        else:
            self.say(f"{len(counts)} group(s) read again from there.", done=True)
