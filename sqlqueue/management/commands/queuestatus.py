"""Show how every topic and group stands."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.db import Error as DatabaseError

from sqlqueue.core.bounds import DAY
from sqlqueue.database import faults
from sqlqueue.database.server import describe
from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.terminal import ago
from sqlqueue.observe.activity import Rate, rates
from sqlqueue.observe.survey import GroupSurvey, Survey, TopicSurvey, survey

HOME = "\x1b[H\x1b[J"  # to the terminal's first place, and clear what is there
GROUPS = ("topic", "group", "lag", "oldest", "in-hand", "failing", "waiting", "dead")
MORE = ("acked/s", "drained-in", "consumers", "state")
TOPICS = ("topic", "partitions", "priorities", "retention", "scheduled", "overdue", "refused", "state")
STUCK = {
    "failing": "fails again and again",
    "standing": "is not being settled",
    "full": "fails with so many others that nothing new is read",
    "held": "has so many delivered behind it, beyond an open transaction, that nothing new is read",
}


class Command(QueueCommand):
    """Reads the tables alone: it works while no consumer runs, and costs a handful of statements."""

    help = "Show how every topic and group stands: lag, age, what fails, what is dead, who is alive, what is stuck."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable)")
        parser.add_argument("--group", action="append", default=[], help="only this group (repeatable)")
        self.add_json(parser)
        parser.add_argument(
            "--watch",
            nargs="?",
            type=arguments.decimal(0.1, DAY),
            const=2.0,
            metavar="SECONDS",
            help="again every 2 seconds, until Ctrl-C",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Show it once, or until interrupted."""
        every = options["watch"]
        if every is None:
            self._show(options)
            return
        try:
            while True:
                self._show_again(options)
                self.pause(every)
        except KeyboardInterrupt:
            return  # that is how watching ends

    def _show_again(self, options: dict[str, Any]) -> None:
        if self.stdout.isatty() and not options["json"]:
            self.stdout.write(HOME, ending="")
        try:
            self._show(options)
        except DatabaseError as error:
            if faults.classify(error) is not faults.Fault.GONE:
                raise
            self.note(f"the database does not answer: {error}")
            faults.drop_connection(self.alias)

    def _show(self, options: dict[str, Any]) -> None:
        seen = survey(self.alias)
        wanted_topics, wanted_groups = options["topic"], options["group"]
        groups = [
            group
            for group in seen.groups
            if (not wanted_topics or group.topic in wanted_topics)
            and (not wanted_groups or group.group in wanted_groups)
        ]
        topics = [topic for topic in seen.topics if not wanted_topics or topic.name in wanted_topics]
        speeds = rates(self.alias, seen.taken_at)
        if options["json"]:
            self.as_json(_plain(seen, topics, groups, speeds), indent=None if options["watch"] else 2)
            return
        self.say(
            f"{seen.taken_at:%Y-%m-%d %H:%M:%S} UTC, {self.alias}: {describe(self.alias)}."
            f" Consumer processes alive: {seen.subscribers}. Highest offset: {seen.highest_offset}."
        )
        if seen.horizon_age > 1:
            self.say(
                f"The horizon is {seen.horizon_lag} offsets behind: a transaction that publishes is open, for at most"
                f" {ago(seen.horizon_age)}."
            )
        self.say()
        if not topics:
            self.say("There are no topics yet: the first publish creates one." if not wanted_topics else "No topic.")
            return
        self.table(TOPICS, map(_topic, topics))
        self.say()
        if groups:
            self.table((*GROUPS, *MORE), (_group(group, speeds.get((group.topic, group.group))) for group in groups))
        else:
            self.say("No group is registered: consumers do that when they first run.")
        for group in groups:
            for stuck in group.stuck:
                self.say(
                    f"stuck: {group.group} of {group.topic}[{stuck.partition}] stands at offset {stuck.offset}, which"
                    f" {STUCK[stuck.why]}, since {ago(stuck.seconds)}"
                )


def _topic(topic: TopicSurvey) -> tuple[object, ...]:
    kept = "for ever" if topic.retention is None else ago(topic.retention)
    state = "paused" if topic.paused else ""
    scheduled, overdue = (_at_least(count, topic.more_scheduled) for count in (topic.scheduled, topic.overdue))
    refused = _at_least(topic.refused, topic.more_refused)
    return topic.name, topic.partitions, topic.priorities, kept, scheduled, overdue, refused, state


def _group(group: GroupSurvey, rate: Rate | None) -> tuple[object, ...]:
    return (
        group.topic,
        group.group,
        f"{'~' if group.estimated else ''}{group.lag}",
        ago(group.oldest_age),
        group.in_flight,
        group.failing,
        group.waiting,
        _at_least(group.dead_letters, group.more_letters),
        f"{rate.acked:.1f}" if rate else "0.0",
        ago(_drained_in(group, rate)),
        group.subscribers,
        _state(group),
    )


def _at_least(count: int, more: bool) -> str:
    return f"{count}{'+' if more else ''}"


def _drained_in(group: GroupSurvey, rate: Rate | None) -> float | None:
    """Return in how many seconds nothing is left, if it goes on like that."""
    if rate is None or not group.lag or rate.falling is None or rate.falling <= 0:
        return None
    return group.lag / rate.falling


def _state(group: GroupSurvey) -> str:
    if group.paused:
        return "paused"
    words = ["away: holds back collection"] if group.away else []
    if group.stuck:
        words.append(f"{len(group.stuck)} stuck")
    if group.subscribers and group.unowned:
        words.append(f"{group.unowned} of {group.partitions} partitions unowned")
    return ", ".join(words)


def _plain(
    seen: Survey, topics: list[TopicSurvey], groups: list[GroupSurvey], speeds: dict[tuple[str, str], Rate]
) -> dict[str, Any]:
    described = []
    for group in groups:
        rate = speeds.get((group.topic, group.group))
        speed = {"acked_per_second": rate.acked if rate else 0.0, "failed_per_second": rate.failed if rate else 0.0}
        described.append({**asdict(group), "away": group.away, **speed, "drained_in": _drained_in(group, rate)})
    whole = asdict(seen)
    return {**whole, "topics": [asdict(topic) for topic in topics], "groups": described}
