"""Consumer groups: rewind, skip, acknowledge, remove (`queuegroup`)."""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.log.groups import remove
from sqlqueue.management import arguments
from sqlqueue.management.arguments import HELP, checked_partition, known_groups, known_topic, offset_above
from sqlqueue.management.base import QueueCommand
from sqlqueue.models import ConsumerGroup
from sqlqueue.operations.messages import acknowledge, preview
from sqlqueue.operations.move import MovePreview, check_part, move
from sqlqueue.operations.move import preview as preview_move
from sqlqueue.stats.survey import survey
from sqlqueue.stats.texts import about


class Command(QueueCommand):
    """Has the operations rewind, skip, acknowledge and remove."""

    help = "Rewind consumer groups, let them skip, acknowledge messages for one, or remove one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the operations, each with its arguments."""
        operations = self.operations(parser)
        back = self.operation(
            operations,
            "rewind",
            partial(self._move, forward=False, figure="again", act="deliver", done="read again from there"),
            "let groups read again what the log still holds",
            json=True,
            caution=True,
        )
        back.add_argument("--from", dest="target", required=True, metavar="WHERE", help=f"{HELP}, or earliest")
        forward = self.operation(
            operations,
            "skip",
            partial(self._move, forward=True, figure="skipped", act="skip", done="read on from there"),
            "let groups skip messages that they have not read",
            json=True,
            caution=True,
        )
        forward.add_argument("--to", dest="target", required=True, metavar="WHERE", help=f"{HELP}, or latest")
        for moving in (back, forward):
            moving.add_argument("topic")
            moving.add_argument("--group", action="append", default=[], help="this group (repeatable)")
            moving.add_argument("--all-groups", action="store_true", help="every group of the topic")
            moving.add_argument("--partition", type=arguments.partition, help="only this partition")
        acking = self.operation(
            operations,
            "acknowledge",
            self._acknowledge,
            "ack messages for a group, which then never gets them",
            caution=True,
        )
        acking.add_argument("topic")
        acking.add_argument("--group", required=True, help="on behalf of this group")
        acking.add_argument("--id", action="append", help="the message with this id (repeatable), and the key")
        acking.add_argument("--key", default="", help="the key of the ids; without ids: all of this key in the log")
        acking.add_argument(
            "--offset", action="append", type=arguments.offset, help="the message at this offset (repeatable)"
        )
        removing = self.operation(
            operations,
            "remove",
            self._remove,
            "delete a group: its registration, offsets and delivery states",
            caution=True,
        )
        removing.add_argument("topic")
        removing.add_argument("group")
        removing.add_argument("--force", action="store_true", help="even while consumer processes serve it")

    def _move(self, options: dict[str, Any], forward: bool, figure: str, act: str, done: str) -> None:
        """Preview, ask, and move the groups, one transaction each. figure: of a preview, what is wanted; the other one
        must be 0, and nothing that a group has read further meanwhile is delivered again by a skip."""
        target, previews = self._previewed(options)
        for group, found in previews.items():
            if found.again and forward:
                raise CommandError(
                    f"group {group!r} has partitions that have read further: this would deliver messages again. Let the"
                    " other partitions skip with --partition, or rewind with `queuegroup rewind`."
                )
            if found.skipped and not forward:
                raise CommandError(
                    f"group {group!r} has partitions that have not read so far: this would skip messages there. Rewind"
                    " the other partitions with --partition, or skip with `queuegroup skip`."
                )
        again = "" if forward else " again"
        count = sum(getattr(found, figure) for found in previews.values())
        nothing = "" if count else f"There is nothing to {act}{again}."
        plain = {"above": target, "groups": {group: found._asdict() for group, found in previews.items()}}
        if self.proceed(options, f"{act.capitalize()} {count} messages{again}?", nothing, plain):
            with self.progress("move", len(previews)) as progress:
                for number, group in enumerate(previews, start=1):
                    move(self.log, group, options["topic"], target, options["partition"], forward_only=forward)
                    progress.reach(number)
            self.done(f"{len(previews)} group(s) {done}.", **plain)

    def _previewed(self, options: dict[str, Any]) -> tuple[int, dict[str, MovePreview]]:
        """Return the offset above which the groups are to read next, and what that means for each; print it."""
        if bool(options["group"]) == options["all_groups"]:
            raise CommandError("name groups with --group NAME (repeatable), or give --all-groups")
        topic = known_topic(self.log, options["topic"])
        groups = known_groups(self.log, topic.name, options["group"])
        partition = checked_partition(self.log, topic, options["partition"])
        target = offset_above(self.log, options["target"])
        for one in ConsumerGroup.objects.using(self.log.alias).filter(topic=topic.name, consumer_group__in=groups):
            check_part(self.log, one, target, partition)
        found = {group: preview_move(self.log, group, topic.name, target, partition) for group in groups}
        self.say(f"The next message to be read is the first above offset {target}.")
        rows = [
            (group, about(one.again, one.estimated), about(one.skipped, one.estimated)) for group, one in found.items()
        ]
        self.table(("group", "again", "skipped"), rows)
        return target, found

    def _acknowledge(self, options: dict[str, Any]) -> None:
        topic = known_topic(self.log, options["topic"]).name
        [group] = known_groups(self.log, topic, [options["group"]])
        which = {"ids": options["id"], "key": options["key"], "offsets": options["offset"]}
        which["database"] = self.log.alias
        count = preview(topic, group, **which)
        self.say(f"Group {group!r} has not settled {count} of these messages; those in flight are left.")
        nothing = "" if count else "Nothing was done."
        if self.proceed(options, f"Acknowledge {count} messages? The group does not get them any more.", nothing):
            self.done(f"{acknowledge(topic, group, **which)} acknowledged.")

    def _remove(self, options: dict[str, Any]) -> None:
        topic = known_topic(self.log, options["topic"])
        [group] = known_groups(self.log, topic.name, [options["group"]])
        seen = survey(self.log).group(topic.name, group)
        lag = about(seen.lag, seen.estimated) if seen else 0
        self.say(f"Group {group!r} of topic {topic.name!r} has {lag} messages that it has not settled.")
        if seen is not None and seen.subscribers and not options["force"]:
            raise CommandError(
                f"{seen.subscribers} consumer process(es) serve it, and would register it again when they next start:"
                " stop them first, or give --force"
            )
        if self.proceed(options, f"Remove group {group!r} from topic {topic.name!r}?"):
            remove(self.log, group, topic.name)
            self.done("Removed. Collection no longer waits for it; its dead letters are kept.")
