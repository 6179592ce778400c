"""Pausing a topic, or one group of it (`queuepause`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from sqlqueue.log.topics import topic_info
from sqlqueue.management.arguments import has_nothing_of, known_groups, known_topic
from sqlqueue.management.base import QueueCommand
from sqlqueue.operations.topics import pause


class Command(QueueCommand):
    """Pauses. It is no error if the topic or group is paused already: exit code 0 means that it is paused."""

    every_database = ("",)
    help = "Pause a topic, or one group of it: no handler starts until queueresume; publishing goes on."
    change = staticmethod(pause)
    changed = "Paused {}. No handler starts from a second on; running handlers finish, and messages are kept."
    unchanged = "There was nothing to do: {} was paused already."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("topic")
        parser.add_argument("--group", default="", help="only this group (default: all groups)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Pause or resume the topic or the group."""
        topic, group = options["topic"], options["group"]
        if group:
            known_groups(self.log, topic, [group])
        elif has_nothing_of(self.log, topic):  # what comes to this database later is meant, too
            topic_info(self.log, topic)
        else:
            known_topic(self.log, topic)
        label = f"group {group!r} of topic {topic!r}" if group else f"topic {topic!r}"
        done = self.change(self.log, topic, group)
        self.say((self.changed if done else self.unchanged).format(label), done=done)
