"""Consumer groups: list, rewind, skip, acknowledge, remove (`queuegroup`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.exceptions import ConfigurationError, InvalidMessage
from sqlqueue.log.groups import remove
from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.databases import has_nothing_of
from sqlqueue.management.moves import Moves, checked_partition
from sqlqueue.management.positions import HELP, known_groups, known_topic, offset_above
from sqlqueue.models import ConsumerGroup
from sqlqueue.operations.acknowledge import acknowledge, preview
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.survey import survey
from sqlqueue.stats.texts import about, duration


class Command(QueueCommand):
    """Has the operations list, rewind, skip, acknowledge and remove."""

    every_database = ("list",)
    help = "List consumer groups, rewind them, let them skip, acknowledge messages for one, or remove one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the operations, each with its arguments."""
        operations = self.add_operations(parser)
        listing = operations.add_parser("list", help="show the registered groups")
        listing.add_argument("--topic", default="", help="only of this topic")
        self.add_json(listing)
        back = operations.add_parser("rewind", help="let groups read again what the log still holds")
        back.add_argument("--from", dest="target", required=True, metavar="WHERE", help=f"{HELP}, or earliest")
        forward = operations.add_parser("skip", help="let groups skip messages that they have not read")
        forward.add_argument("--to", dest="target", required=True, metavar="WHERE", help=f"{HELP}, or latest")
        for moving in (back, forward):
            moving.add_argument("topic")
            moving.add_argument("--group", action="append", default=[], help="this group (repeatable)")
            moving.add_argument("--all-groups", action="store_true", help="every group of the topic")
            moving.add_argument("--partition", type=arguments.partition, help="only this partition")
            self.add_caution(moving)
            self.add_json(moving)
        acking = operations.add_parser("acknowledge", help="ack messages for a group, which then never gets them")
        acking.add_argument("topic")
        acking.add_argument("--group", required=True, help="on behalf of this group")
        acking.add_argument("--id", action="append", help="the message with this id (repeatable), and the key")
        acking.add_argument("--key", default="", help="the key of the ids; without ids: all of this key in the log")
        acking.add_argument(
            "--offset", action="append", type=arguments.offset, help="the message at this offset (repeatable)"
        )
        self.add_caution(acking)
        removing = operations.add_parser("remove", help="delete a group: its registration, offsets and delivery states")
        removing.add_argument("topic")
        removing.add_argument("group")
        removing.add_argument("--force", action="store_true", help="even while consumer processes serve it")
        self.add_caution(removing)

    def handle(self, *args: Any, **options: Any) -> None:
        """Carry out the chosen operation."""
        operations = {"list": self._list, "rewind": self._rewind, "skip": self._skip, "remove": self._remove}
        operations["acknowledge"] = self._acknowledge
        operations[options["operation"]](options)

    def _list(self, options: dict[str, Any]) -> None:
        log = self.reading_log()
        if options["topic"] and not has_nothing_of(self.log, options["topic"], log):
            known_topic(log, options["topic"])
        groups = [one for one in survey(log).groups if options["topic"] in ("", one.topic)]
        starts = {
            (topic, group): (start, created)
            for topic, group, start, created in ConsumerGroup.objects.using(log.alias).values_list(
                "topic", "consumer_group", "start", "created_at"
            )
        }
        rows = [(one, *starts.get((one.topic, one.group), (0, None))) for one in groups]
        if options["json"]:
            self.as_json(
                [
                    {
                        "topic": one.topic,
                        "group": one.group,
                        "registered_at": registered,
                        "start": start,
                        "paused": one.paused,
                        "lag": one.lag,
                        "consumers": one.subscribers,
                    }
                    for one, start, registered in rows
                ]
            )
            return
        if not rows:
            self.say("No group is registered.")
            return
        self.table(
            ("topic", "group", "registered", "began-at", "lag", "oldest", "consumers", "state"),
            [
                (
                    one.topic,
                    one.group,
                    f"{registered:%Y-%m-%d %H:%M}" if registered else "—",
                    start,
                    about(one.lag, one.estimated),
                    "—" if one.oldest_age is None else duration(one.oldest_age),
                    one.subscribers,
                    _state(one),
                )
                for one, start, registered in rows
            ],
        )

    def _rewind(self, options: dict[str, Any]) -> None:
        moves = self._moves(options)
        if group := next((group for group, found in moves.previews.items() if found.skipped), None):
            raise CommandError(
                f"group {group!r} has partitions that have not read so far: this would skip messages there. Rewind the"
                " other partitions with --partition, or skip with `queuegroup skip`."
            )
        again = sum(found.again for found in moves.previews.values())
        self._carry_out(
            moves,
            again,
            f"Deliver {again} messages again?",
            f"{len(moves.previews)} group(s) read again from there.",
            "There is nothing to deliver again.",
            options,
        )

    def _skip(self, options: dict[str, Any]) -> None:
        moves = self._moves(options)
        if group := next((group for group, found in moves.previews.items() if found.again), None):
            raise CommandError(
                f"group {group!r} has partitions that have read further: this would deliver messages again. Let the"
                " other partitions skip with --partition, or rewind with `queuegroup rewind`."
            )
        skipped = sum(found.skipped for found in moves.previews.values())
        self._carry_out(
            moves,
            skipped,
            f"Skip {skipped} messages?",
            f"{len(moves.previews)} group(s) read on from there.",
            "There is nothing to skip.",
            options,
            forward_only=True,
        )

    def _moves(self, options: dict[str, Any]) -> Moves:
        if bool(options["group"]) == options["all_groups"]:
            raise CommandError("name groups with --group NAME (repeatable), or give --all-groups")
        topic = known_topic(self.log, options["topic"])
        groups = known_groups(self.log, topic.name, options["group"])
        partition = checked_partition(self.log, topic, options["partition"])
        moves = Moves(self.log, topic.name, groups, offset_above(self.log, options["target"]), partition)
        if not options["json"]:
            moves.show(self)
        return moves

    def _carry_out(
        self,
        moves: Moves,
        count: int,
        question: str,
        done: str,
        nothing: str,
        options: dict[str, Any],
        forward_only: bool = False,
    ) -> None:
        """Ask the operator, move the groups if a message is concerned, and print the result."""
        if count and not options["dry_run"]:
            if not options["json"]:
                self.confirm(question, options)
            elif not options["no_input"]:
                raise CommandError("--json needs --no-input or --dry-run: it asks no questions")
            moves.carry_out(self, forward_only)
        if options["json"]:
            self.as_json(moves.as_plain(bool(count) and not options["dry_run"]))
        elif not count:
            self.say(nothing)
        elif options["dry_run"]:
            self.say("Nothing was done.")
        else:
            self.say(done, done=True)

    def _acknowledge(self, options: dict[str, Any]) -> None:
        topic = known_topic(self.log, options["topic"]).name
        [group] = known_groups(self.log, topic, [options["group"]])
        which = {"ids": options["id"], "key": options["key"], "offsets": options["offset"]}
        try:
            count = preview(topic, group, **which)
        except (ConfigurationError, InvalidMessage) as error:
            raise CommandError(str(error)) from error
        self.say(f"Group {group!r} has not settled {count} of these messages; those in flight are left.")
        if not count or options["dry_run"]:
            self.say("Nothing was done.")
            return
        self.confirm(f"Acknowledge {count} messages? The group does not get them any more.", options)
        self.say(f"{acknowledge(topic, group, **which)} acknowledged.", done=True)

    def _remove(self, options: dict[str, Any]) -> None:
        topic = known_topic(self.log, options["topic"])
        [group] = known_groups(self.log, topic.name, [options["group"]])
        seen = survey(self.log).group(topic.name, group)
        self.say(_loss(group, topic.name, seen))
        if seen is not None and seen.subscribers and not options["force"]:
            raise CommandError(
                f"{seen.subscribers} consumer process(es) serve it, and would register it again when they next start:"
                " stop them first, or give --force"
            )
        if options["dry_run"]:
            self.say("Nothing was done.")
            return
        self.confirm(f"Remove group {group!r} from topic {topic.name!r}?", options)
        remove(self.log, group, topic.name)
        self.say("Removed. Collection no longer waits for it; its dead letters are kept.", done=True)


def _loss(group: str, topic: str, seen: GroupSurvey | None) -> str:
    lag = about(seen.lag, seen.estimated) if seen else 0
    return f"Group {group!r} of topic {topic!r} has {lag} messages that it has not settled."


def _state(group: GroupSurvey) -> str:
    return "paused" if group.paused else "outside its hours" if group.outside_hours else "away" if group.away else ""
