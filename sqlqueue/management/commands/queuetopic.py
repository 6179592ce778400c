"""Topics: create, alter, drop (`queuetopic`)."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.core.effects import texts
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.settings import ACKED, HISTORIES, MOST_PARTITIONS, MOST_PRIORITIES
from sqlqueue.database import clock
from sqlqueue.database.log import all_logs, home_log
from sqlqueue.log import layouts
from sqlqueue.log.layout_changes import under_way
from sqlqueue.log.status import offset_before
from sqlqueue.log.topic_options import CHANGEABLE, FIXED, checked_overrides, differences, override
from sqlqueue.log.topics import existing, topic_info
from sqlqueue.management import arguments
from sqlqueue.management.arguments import has_nothing_of, known_topic
from sqlqueue.management.base import QueueCommand
from sqlqueue.models import ConsumerGroup, Topic
from sqlqueue.operations import repartition
from sqlqueue.operations.drop import DropPreview, drop, preview_drop
from sqlqueue.operations.topics import create_topic, planned_topic, preview
from sqlqueue.stats.texts import about, option_text
from sqlqueue.stats.topics import progress_text

STEP_PAUSE, SAY_AGAIN = 0.1, 10.0  # seconds between two steps, and between two texts of what they wait for


class Command(QueueCommand):
    """Has the operations create, alter and drop."""

    every_database = ("create", "alter")
    help = "Create a topic, change its options, or drop it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the operations, each with its arguments."""
        operations = self.operations(parser)
        creating = self.operation(
            operations, "create", self._create, "make a topic; what is not said is as in the settings", caution=True
        )
        creating.add_argument("topic")
        creating.add_argument("--partitions", type=arguments.whole(1, MOST_PARTITIONS), help="how many")
        creating.add_argument("--priorities", type=arguments.whole(1, MOST_PRIORITIES), help="how many; they stay")
        altering = self.operation(
            operations,
            "alter",
            self._alter,
            "change the partitions, or override retention and history",
            caution=True,
        )
        altering.add_argument("topic")
        altering.add_argument(
            "--partitions",
            type=arguments.whole(1, MOST_PARTITIONS),
            help="how many from now on, while publishers and consumers run; carries on what was interrupted",
        )
        altering.add_argument(
            "--abort", action="store_true", help="stay with the present partitions, if no key has gone over yet"
        )
        altering.add_argument("--as-settings", action="store_true", help="take other overrides back")
        for changing in (creating, altering):
            changing.add_argument(
                "--retention",
                type=arguments.retention,
                metavar="TIME",
                help="how long to keep messages after they were published: 90s, 15m, 2h, 3d or forever",
            )
            changing.add_argument("--history", choices=HISTORIES, help="which receipts are written")
        dropping = self.operation(
            operations,
            "drop",
            self._drop,
            "delete a topic with all its messages, groups and dead letters",
            json=True,
            caution=True,
        )
        dropping.add_argument("topic")
        dropping.add_argument(
            "--unsettled",
            action="store_true",
            help="also if messages are not settled or scheduled, or there are dead letters or open work items: they"
            " are lost",
        )

    # -- create -------------------------------------------------------------------------------------------------------

    def _create(self, options: dict[str, Any]) -> None:
        name = options["topic"]
        topic = planned_topic(name, options["partitions"], options["priorities"], _overrides(options))
        if Topic.objects.using(self.log.alias).filter(name=name).exists():
            raise CommandError(f"topic {name!r} is there already: `queuetopic alter` changes what can be changed")
        self.say(
            f"Topic {name!r}: {topic.partitions} partitions, {topic.priorities} priorities, retention"
            f" {option_text(topic.retention)}, history {topic.history}."
        )
        for one in differences(topic, FIXED):
            self.note(f"the settings say {one.option} {one.wanted}: a topic keeps what it was created with")
        if not self.proceed(options, ""):
            return
        create_topic(self.log, topic)
        present = layouts.epochs(self.log, name)[-1].partitions
        if present != topic.partitions:
            self.note(
                f"a topic of this name had {present} partitions when it was dropped, and goes on with them:"
                f" `queuetopic alter {name} --partitions {topic.partitions}` changes that"
            )
        self.say("Created.", done=True)

    # -- alter --------------------------------------------------------------------------------------------------------

    def _alter(self, options: dict[str, Any]) -> None:
        if has_nothing_of(self.log, options["topic"]):
            self.say(f"Nothing of topic {options['topic']!r} has come to this database yet: it is made here first.")
            if options["dry_run"]:
                self.say("Nothing was done.")
                return
            topic_info(self.log, options["topic"])
        topic = known_topic(self.log, options["topic"])
        given = _overrides(options)
        if options["partitions"] is not None or options["abort"]:
            if given or options["as_settings"] or (options["abort"] and options["partitions"] is not None):
                raise CommandError("change one thing at a time: --partitions, --abort, or the other options")
            change = self._abort if options["abort"] else self._repartition
            change(topic.name, options)
            return
        if not given and not options["as_settings"]:
            raise CommandError("say what to change: --partitions, --retention, --history or --as-settings")
        kept = {} if options["as_settings"] else {name: getattr(topic, name) for name in topic.overridden}
        values = checked_overrides(topic.name, {**kept, **given})
        wanted = {name: values.get(name, getattr(settings.topic(topic.name), name)) for name in CHANGEABLE}
        if topic.name.endswith(DEAD_LETTER_SUFFIX):
            wanted["retention"] = topic.retention
        for name, after in wanted.items():
            if (before := getattr(topic, name)) != after:
                self.say(f"{name}: {option_text(before)} becomes {option_text(after)}")
        released = self._released(topic, wanted["retention"])
        if self.proceed(options, f"Change topic {topic.name!r}?" if released else ""):
            override(self.log, topic.name, values)
            self.done("Changed. What the settings say otherwise is overridden.")

    def _released(self, topic: Topic, retention: float | None) -> int:
        """Say how many messages a shorter retention releases at once, and return that."""
        if retention is None or (topic.retention is not None and topic.retention <= retention):
            return 0
        through = offset_before(self.log, clock.now(self.log) - timedelta(seconds=retention))
        found = preview(self.log, topic.name, through)
        if found.messages:
            acked = settings.topic(topic.name).retention_from == ACKED
            when = "so long after" if acked else "as soon as"
            self.say(
                f"{about(found.messages, found.estimated)} messages are older than that: each is deleted {when} every"
                " group has settled it."
            )
        return found.messages

    def _repartition(self, topic: str, options: dict[str, Any]) -> None:
        """Change a topic's partitions, or carry on a change that was interrupted."""
        log, partitions = self.log, options["partitions"]
        change = under_way(log)
        question = ""
        if change is not None and (change.topic, change.later.partitions) == (topic, partitions):
            self.say("It was begun before, and is carried on.")
        else:
            if change is not None and not change.going:  # all keys have gone over, and not all publishers know that
                self.say(f"What is left of the change of topic {change.topic!r} is done first.")
                if not options["dry_run"]:
                    self._carry_on()
                change = None
            before = layouts.epochs(log, topic)[-1].partitions
            if before == partitions and self.on_several:
                self.say(f"Topic {topic!r} has {partitions} partitions already.")
                return
            if before == partitions:
                raise CommandError(f"topic {topic!r} has {partitions} partitions already")
            repartition.refuse(log, topic, partitions, change)
            self._explain(topic, before, partitions)
            question = f"Change topic {topic!r} to {partitions} partitions?"
        if not self.proceed(options, question):
            return
        if question:
            repartition.begin(log, topic, partitions)
        self._carry_on()
        self.done(
            f"Topic {topic!r} has {partitions} partitions. Each group begins them when it has settled what is in the"
            " former ones."
        )

    def _abort(self, topic: str, options: dict[str, Any]) -> None:
        """Let a topic stay with its partitions while its change is under way."""
        change = under_way(self.log)
        going = change is not None and change.topic == topic and change.going
        if self.on_several and not going:
            self.say(f"No change of topic {topic!r} is under way. Nothing was done.")
            return
        if options["dry_run"]:
            stays = repartition.abortable(self.log, topic).earlier.partitions
            self.say(f"Topic {topic!r} can stay with its {stays} partitions. Nothing was done.")
            return
        repartition.abort(self.log, topic)
        self._carry_on()
        self.done(f"Topic {topic!r} stays with its partitions.")

    def _explain(self, topic: str, before: int, partitions: int) -> None:
        groups = ConsumerGroup.objects.using(self.log.alias).filter(topic=topic).order_by("consumer_group")
        names = ", ".join(groups.values_list("consumer_group", flat=True))
        self.say(
            f"Topic {topic!r}: {before} partitions become {partitions} others. New messages go to those; what is in the"
            f" former ones stays there, and {f'{names} end' if names else 'any group ends'} there first."
        )
        for one in layouts.epochs(self.log, topic)[:-1]:
            if one.end is not None:
                self.note(f"partitions of a former change, {one.partitions} of them, are still being settled")

    def _carry_on(self) -> None:
        """Carry on the change that is under way on the database of a command, and say what it waits for."""
        stage, say_at = "", 0.0
        for progress in repartition.Repartition(self.log).run(0):
            if progress.left and (progress.stage != stage or time.monotonic() > say_at):
                stage, say_at = progress.stage, time.monotonic() + SAY_AGAIN
                self.say(f"{progress_text(progress)} This holds up nothing else, and other processes carry it on, too.")
            self.pause(STEP_PAUSE if progress.left else 0)

    # -- drop ---------------------------------------------------------------------------------------------------------

    def _drop(self, options: dict[str, Any]) -> None:
        name = known_topic(self.log, options["topic"]).name
        self._refuse_to_drop_first(name)
        found = preview_drop(self.log, name)
        self._show_losses(name, found)
        if found.loses and not options["unsettled"] and not options["dry_run"]:
            raise CommandError(f"this would lose what is not settled of topic {name!r}: settle it, or give --unsettled")
        if self.proceed(options, f"Drop topic {name!r} with everything of it?", preview=asdict(found)):
            total = found.messages + found.scheduled + found.dead_letters + found.of_effects
            with self.progress("drop", total) as progress:
                drop(self.log, name, unsettled=options["unsettled"], deleted=progress.reach)
            self.done(f"Dropped. Restart what still publishes to {name!r}.", **asdict(found))

    def _refuse_to_drop_first(self, name: str) -> None:
        """Refuse to drop a topic on DATABASE's database, which fixes its databases, before it is dropped on the
        others."""
        others = [log for log in all_logs() if log != self.log] if self.log == home_log() else []
        for log in others:
            if existing(log, {name}):
                database = log.label
                raise CommandError(
                    f"topic {name!r} is on database {database!r}, too: drop it there first, with --database {database}"
                )

    def _show_losses(self, name: str, found: DropPreview) -> None:
        dead_letters = ", ".join([f"{found.dead_letters} dead letters", *texts(found.effects)])
        self.say(
            f"Topic {name!r}: {about(found.messages, found.estimated)} messages, {found.scheduled} scheduled ones,"
            f" {dead_letters}; {found.subscribers} consumer processes serve it."
        )
        if found.unread and found.messages:
            self.say("No group has read them.")
        if found.unsettled:
            self.table(("group", "not-settled"), list(found.unsettled.items()))
        if name in settings.TOPICS:
            self.note(f"SQLQUEUE['TOPICS'] names {name!r}: the first use makes it anew")


def _overrides(options: dict[str, Any]) -> dict[str, Any]:
    """Return the changeable options that were given; `forever` is None."""
    given = {name: options[name] for name in CHANGEABLE if options[name] is not None}
    if given.get("retention") == arguments.FOREVER:
        given["retention"] = None
    return given
