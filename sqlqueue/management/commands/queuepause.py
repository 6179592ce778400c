"""Pausing a topic, or one group of it (`queuepause`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from sqlqueue.log.topics import topic_info
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.databases import has_nothing_of
from sqlqueue.management.positions import known_groups, known_topic
from sqlqueue.operations.topics import pause


class PausingCommand(QueueCommand):
    """A command whose arguments are a topic and, with --group, one group of it."""

    every_database = ("",)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("topic")
        parser.add_argument("--group", default="", help="only this group (default: all groups)")

    def label(self, options: dict[str, Any]) -> str:
        """Return how messages name the topic or group; raise ConfigurationError if it does not exist."""
        if options["group"]:
            known_groups(self.log, options["topic"], [options["group"]])
            return f"group {options['group']!r} of topic {options['topic']!r}"
        if has_nothing_of(self.log, options["topic"]):  # what comes to this database later is meant, too
            topic_info(self.log, options["topic"])
        known_topic(self.log, options["topic"])
        return f"topic {options['topic']!r}"


class Command(PausingCommand):
    """Pauses. It is no error if the topic or group is paused already: exit code 0 means that it is paused."""

    help = "Pause a topic, or one group of it: no handler starts until queueresume; publishing goes on."

    def handle(self, *args: Any, **options: Any) -> None:
        """Pause the topic or the group."""
        label = self.label(options)
        if pause(self.log, options["topic"], options["group"]):
            self.say(
                f"Paused {label}. No handler starts from a second on; running handlers finish, and messages are kept.",
                done=True,
            )
        else:
            self.say(f"There was nothing to do: {label} was paused already.")
