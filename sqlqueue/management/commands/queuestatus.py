"""The state of every topic and group (`queuestatus`)."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.core.effects import texts
from sqlqueue.core.settings import ACKED
from sqlqueue.database.server_checks import describe
from sqlqueue.log.topic_options import differences
from sqlqueue.management.base import QueueCommand
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import ERROR
from sqlqueue.stats.groups import GroupSurvey, states
from sqlqueue.stats.survey import Survey, survey
from sqlqueue.stats.texts import about, duration, option_text
from sqlqueue.stats.topics import TopicSurvey

OF_SETTINGS = ("retention_from", "keep_collected")  # options of a topic that no table holds
GROUPS = ("topic", "group", "lag", "oldest", "in-flight", "failing", "waiting", "dead", "acked/s", "consumers", "state")
TOPICS = (
    "topic",
    "partitions",
    "priorities",
    "retention",
    "history",
    "dead",
    "scheduled",
    "overdue",
    "refused",
    "state",
)


class Command(QueueCommand):
    """Reads the tables only, in a handful of statements; it works while no consumer process runs."""

    every_database = ("",)
    help = "Show the state of every topic and group: lag, age, failures, dead letters, processes, stuck messages."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable)")
        parser.add_argument("--group", action="append", default=[], help="only this group (repeatable)")
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the state."""
        log = self.reading_log()
        seen = survey(log)
        names, group_names = set(options["topic"]), set(options["group"])
        topics = [topic for topic in seen.topics if topic.name in (names or {topic.name})]
        groups = [
            group
            for group in seen.groups
            if group.topic in (names or {group.topic}) and group.group in (group_names or {group.group})
        ]
        if self.json:
            self.as_json(_plain(seen, topics, groups))
            return
        self.say(
            f"{seen.taken_at:%Y-%m-%d %H:%M:%S} UTC, {log.alias}: {describe(log)}."
            f" Consumer processes alive: {seen.subscribers}. Highest offset: {seen.highest_offset}."
        )
        self.say()
        if not topics:
            none = "There are no topics yet: the first publish creates one, or `queuetopic create`."
            self.say("There is no such topic." if names else none)
            return
        self.table(TOPICS, map(_topic, topics))
        for topic in topics:
            self._show_options(topic)
        self.say()
        if groups:
            self.table(GROUPS, map(_group, groups))
        else:
            self.say("No group is registered: consumer processes register their groups when they start.")
        self._show_findings(seen, {"", *(topic.name for topic in topics)}, {"", *(group.group for group in groups)})

    def _show_options(self, topic: TopicSurvey) -> None:
        """Print what effects have of a topic, and how its options differ from the settings."""
        if counted := texts(topic.counts):
            self.say(f"{topic.name}: {', '.join(counted)}")
        for one in differences(topic):
            why = "overridden" if one.overridden else "applied when the consumer processes start again"
            self.say(
                f"{one.option} of {one.topic} is {option_text(one.stored)}; the settings say"
                f" {option_text(one.wanted)}: {why}"
            )

    def _show_findings(self, seen: Survey, topics: set[str], groups: set[str]) -> None:
        """Print what needs attention of these topics and groups; what concerns the whole queue has the name ""."""
        for one in findings(seen):
            if one.topic in topics and one.group in groups:
                text = f"{one.severity}: {one.text}"
                if one.severity == ERROR and not one.topic:
                    self.note(f"{text} {one.advice}")
                else:
                    self.say(f"{text} ({one.command})")


def _topic(topic: TopicSurvey) -> tuple[object, ...]:
    options = settings.topic(topic.name)
    states = ["paused"] if topic.paused else []
    states += [f"{option} overridden" for option in topic.overridden]
    states += [f"epoch {topic.epoch}"] if topic.epoch else []
    states += ["being changed"] if topic.change else []
    if options.retention_from == ACKED and topic.retention is not None:
        states.append("retention from the acks")
    if options.keep_collected is not None:
        states.append(f"collected kept {duration(options.keep_collected)}")
    return (
        topic.name,
        topic.partitions,
        topic.priorities,
        option_text(topic.retention),
        topic.history,
        _at_least(topic.dead_letters, topic.more_dead_letters),
        _at_least(topic.scheduled, topic.more_scheduled),
        _at_least(topic.overdue, topic.more_scheduled),
        _at_least(topic.refused, topic.more_refused),
        ", ".join(states),
    )


def _group(group: GroupSurvey) -> tuple[object, ...]:
    found = states(group)
    if group.rate.filtered:
        found.append(f"filtered: {group.rate.filtered:.1f}/s")
    return (
        group.topic,
        group.group,
        about(group.lag, group.estimated),
        "—" if group.oldest_age is None else duration(group.oldest_age),
        group.in_flight,
        group.failing,
        group.waiting,
        _at_least(group.dead_letters, group.more_dead_letters),
        f"{group.rate.acked:.1f}",
        group.subscribers,
        ", ".join(found),
    )


def _at_least(count: int, more: bool) -> str:
    return f"{count}{'+' if more else ''}"


def _plain(seen: Survey, topics: list[TopicSurvey], groups: list[GroupSurvey]) -> dict[str, Any]:
    group_values = [{**asdict(group), "away": group.away} for group in groups]
    own = [{name: getattr(settings.topic(topic.name), name) for name in OF_SETTINGS} for topic in topics]
    topic_values = [{**asdict(topic), **options} for topic, options in zip(topics, own)]
    return {**asdict(seen), "topics": topic_values, "groups": group_values}
