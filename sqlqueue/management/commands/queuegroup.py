"""List consumer groups, move them, remove them."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.log.groups import remove
from sqlqueue.management import arguments, moving
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.places import HELP, known_groups, known_topic, offset_above
from sqlqueue.management.terminal import ago
from sqlqueue.models import ConsumerGroup
from sqlqueue.observe.survey import GroupSurvey, survey


class Command(QueueCommand):
    """One verb each: list, reset, remove."""

    help = "List consumer groups, move one to another place in the log, or remove one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the verbs."""
        verbs = self.add_verbs(parser)
        listing = verbs.add_parser("list", help="show the registered groups")
        listing.add_argument("--topic", default="", help="only of this topic")
        self.add_json(listing)
        moving_ = verbs.add_parser("reset", help="let a group read on from another place: again, or skipping")
        moving_.add_argument("topic")
        moving_.add_argument("group")
        moving_.add_argument("--to", required=True, metavar="WHERE", help=f"{HELP}, earliest or latest")
        moving_.add_argument("--partition", type=arguments.partition, help="only this partition")
        self.add_caution(moving_)
        removing = verbs.add_parser("remove", help="forget a group: its place, and what it has yet to read")
        removing.add_argument("topic")
        removing.add_argument("group")
        removing.add_argument("--force", action="store_true", help="even while consumers serve it")
        self.add_caution(removing)

    def handle(self, *args: Any, **options: Any) -> None:
        """Do what the verb says."""
        {"list": self._list, "reset": self._reset, "remove": self._remove}[options["verb"]](options)

    def _list(self, options: dict[str, Any]) -> None:
        if options["topic"]:
            known_topic(self.alias, options["topic"])
        groups = [one for one in survey(self.alias).groups if options["topic"] in ("", one.topic)]
        starts = {
            (topic, group): (start, created)
            for topic, group, start, created in ConsumerGroup.objects.using(self.alias).values_list(
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
                    f"{'~' if one.estimated else ''}{one.lag}",
                    ago(one.oldest_age),
                    one.subscribers,
                    "paused" if one.paused else "away" if one.away else "",
                )
                for one, start, registered in rows
            ],
        )

    def _reset(self, options: dict[str, Any]) -> None:
        topic = known_topic(self.alias, options["topic"])
        [group] = known_groups(self.alias, topic.name, [options["group"]])
        partition = moving.checked_partition(topic, options["partition"])
        target = offset_above(self.alias, options["to"])
        counts = moving.count(self.alias, topic.name, [group], target, partition)
        moving.show(self, counts, target)
        if options["dry_run"]:
            self.say("Nothing was done.")
            return
        count = counts[group]
        self.confirm(f"Deliver {count.again} messages again, and skip {count.skipped} unread ones?", options)
        moving.move(self, topic.name, counts, target, partition)
        self.say(f"Group {group!r} reads on from there.", done=True)

    def _remove(self, options: dict[str, Any]) -> None:
        topic = known_topic(self.alias, options["topic"])
        [group] = known_groups(self.alias, topic.name, [options["group"]])
        seen = survey(self.alias).group(topic.name, group)
        self.say(_what_is_lost(group, topic.name, seen))
        if seen is not None and seen.subscribers and not options["force"]:
            raise CommandError(
                f"{seen.subscribers} consumer process(es) serve it, and would register it again when they next start:"
                " stop them first, or say --force"
            )
        if options["dry_run"]:
            self.say("Nothing was done.")
            return
        self.confirm(f"Remove group {group!r} from topic {topic.name!r}?", options)
        remove(self.alias, group, topic.name)
        self.say("Removed. Collection waits for it no more; dead letters that it has are kept.", done=True)


def _what_is_lost(group: str, topic: str, seen: GroupSurvey | None) -> str:
    lag = seen.lag if seen else 0
    about = "some " if seen and seen.estimated else ""
    return f"Group {group!r} of topic {topic!r} has {about}{lag} messages that it has not settled."
