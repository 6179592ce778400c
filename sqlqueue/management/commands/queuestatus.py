"""The state of every topic and group, or of one message (`queuestatus`)."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.core.effects import texts
from sqlqueue.database.server_checks import describe
from sqlqueue.log.topic_options import differences, of_settings, told
from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.one_message import by_id, by_offset, wrong_options
from sqlqueue.management.topic_cells import by_settings
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import ERROR
from sqlqueue.stats.group_status import GroupStatus
from sqlqueue.stats.groups import GroupSurvey, states
from sqlqueue.stats.message_status import MessageStatus
from sqlqueue.stats.search import HIGHEST
from sqlqueue.stats.survey import Survey, survey
from sqlqueue.stats.texts import about, duration
from sqlqueue.stats.topics import TopicSurvey

GROUPS = ("topic", "group", "lag", "oldest", "in-flight", "failing", "waiting", "dead")
MORE = ("acked/s", "consumers", "state")
TOPICS = ("topic", "partitions", "priorities", "retention", "history", "scheduled", "overdue", "refused", "state")
MESSAGE = ("group", "state", "attempts", "due", "progress", "result", "error")
MOST_SHOWN = 60  # characters of a result or an error in the table; --json has all


class Command(QueueCommand):
    """Reads the tables only, in a handful of statements; it works while no consumer process runs."""

    every_database = ("",)
    help = (
        "Show the state of every topic and group: lag, age, failures, dead letters, processes, stuck messages. With "
        "--id or --offset: of one message in every group, with its errors."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable)")
        parser.add_argument("--group", action="append", default=[], help="only this group (repeatable)")
        parser.add_argument("--id", help="only this message of the topic: its state, attempts, progress and result")
        parser.add_argument("--key", help="the message's key (with --id), where several have the id")
        parser.add_argument(
            "--offset",
            type=arguments.whole(1, HIGHEST),
            help="only the message of the topic at this offset, with its errors, as --id shows it",
        )
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the state."""
        if wrong := wrong_options(options):
            raise CommandError(wrong)
        if options["offset"] is not None and self.on_several:
            raise CommandError("each database has offsets of its own: say which with --database")
        if options["offset"] is not None:
            self._show_message(options, *by_offset(options["topic"][0], options["offset"]))
        elif options["id"] is not None:
            self._show_message(options, by_id(options["topic"][0], options["id"], options["key"]))
        else:
            self._show_queue(options)

    def _show_message(self, options: dict[str, Any], status: MessageStatus, last_error: str = "") -> None:
        if options["json"]:
            self.as_json(asdict(status))
            return
        where = "is scheduled" if status.offset is None else f"at offset {status.offset}"
        published = f", published {status.published_at:%Y-%m-%d %H:%M:%S} UTC" if status.published_at else ""
        of_key = f" of key {status.key!r}" if status.key else ""
        self.say(f"{status.topic} {status.id}{of_key} {where}{published}.")
        if status.groups:
            self.table(MESSAGE, map(_of_message, status.groups.values()))
        else:
            self.say("No group is registered that gets it.")
        errors = {f"The last error in group {name}": each.error for name, each in status.groups.items()}
        for what, error in ({"The error of this dead letter": last_error} | errors).items():
            if error.strip():
                self.say()
                self.say(f"{what}:")
                self.say_lines(error.rstrip("\n"))

    def _show_queue(self, options: dict[str, Any]) -> None:
        log = self.reading_log()
        stats = survey(log)
        wanted_topics, wanted_groups = options["topic"], options["group"]
        groups = [
            group
            for group in stats.groups
            if (not wanted_topics or group.topic in wanted_topics)
            and (not wanted_groups or group.group in wanted_groups)
        ]
        topics = [topic for topic in stats.topics if not wanted_topics or topic.name in wanted_topics]
        if options["json"]:
            self.as_json(_plain(stats, topics, groups))
            return
        self.say(
            f"{stats.taken_at:%Y-%m-%d %H:%M:%S} UTC, {log.alias}: {describe(log)}."
            f" Consumer processes alive: {stats.subscribers}. Highest offset: {stats.highest_offset}."
        )
        self.say()
        if not topics:
            self.say(
                "There are no topics yet: the first publish creates one."
                if not wanted_topics
                else "There is no such topic."
            )
            return
        self.table(TOPICS, map(_topic, topics))
        for topic in topics:
            if counted := texts(topic.counts):
                self.say(f"{topic.name}: {', '.join(counted)}")
            for one in differences(topic):
                why = "overridden" if one.overridden else "applied when the consumer processes start again"
                self.say(
                    f"{one.option} of {one.topic} is {_option_text(one.stored)}; the settings say"
                    f" {_option_text(one.wanted)}: {why}"
                )
        self.say()
        if groups:
            self.table((*GROUPS, *MORE), map(_group, groups))
        else:
            self.say("No group is registered: consumer processes register their groups when they start.")
        for group in groups:
            if group.rate.filtered:
                self.say(f"filtered: {group.group} of {group.topic} leaves out {group.rate.filtered:.1f} messages/s")
        self._show_findings(stats, options)

    def _show_findings(self, stats: Survey, options: dict[str, Any]) -> None:
        """Print what needs attention of the topics and groups that were asked for, and of the whole queue."""
        for one in findings(stats):
            shown = one.topic in ("", *(options["topic"] or [one.topic]))
            if shown and one.group in ("", *(options["group"] or [one.group])):
                text = f"{one.severity}: {one.text}"
                if one.severity == ERROR and not one.topic:
                    self.note(f"{text} {one.advice}")
                else:
                    self.say(f"{text} ({one.command})")


def _of_message(one: GroupStatus) -> tuple[object, ...]:
    said = one.progress
    progress = "" if said is None else f"{said.done} of {said.total}" if said.total is not None else f"{said.done}"
    note = f": {said.note}" if said is not None and said.note else ""
    result = "" if one.result is None else json.dumps(one.result, ensure_ascii=False)
    error = one.error.strip().rpartition("\n")[2]
    due = f"{one.next_attempt_at:%Y-%m-%d %H:%M:%S}" if one.next_attempt_at else ""
    attempts = "?" if one.attempts is None else one.attempts
    state = one.state if one.replayed_as is None else f"{one.state} as {one.replayed_as[0]}: {one.copy_state}"
    return one.group, state, attempts, due, progress + note, _cut(result), _cut(error)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + "…"


def _topic(topic: TopicSurvey) -> tuple[object, ...]:
    states = ["paused"] if topic.paused else []
    states += [f"{option} overridden" for option in topic.overridden]
    states += [f"epoch {topic.epoch}"] if topic.epoch else []
    states += ["being changed"] if topic.change else []
    states += by_settings(topic)
    scheduled, overdue = (_at_least(count, topic.more_scheduled) for count in (topic.scheduled, topic.overdue))
    refused = _at_least(topic.refused, topic.more_refused)
    options = (topic.partitions, topic.priorities, _option_text(topic.retention), topic.history)
    return topic.name, *options, scheduled, overdue, refused, ", ".join(states)


def _option_text(value: Any) -> str:
    """Return an option's value as text, a retention as a short duration."""
    return duration(value) if isinstance(value, float) else told(value)


def _group(group: GroupSurvey) -> tuple[object, ...]:
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
        ", ".join(states(group)),
    )


def _at_least(count: int, more: bool) -> str:
    return f"{count}{'+' if more else ''}"


def _plain(stats: Survey, topics: list[TopicSurvey], groups: list[GroupSurvey]) -> dict[str, Any]:
    group_values = []
    for group in groups:
        rate = group.rate
        settled = {"acked_per_second": rate.acked, "failed_per_second": rate.failed}
        settled["filtered_per_second"] = rate.filtered
        group_values.append({**asdict(group), "away": group.away, **settled})
    topic_values = [{**asdict(topic), **of_settings(topic.name)._asdict()} for topic in topics]
    return {**asdict(stats), "topics": topic_values, "groups": group_values}
