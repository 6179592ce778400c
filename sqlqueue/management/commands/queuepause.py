"""Pause a topic, or a group of it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from sqlqueue.log.pause import pause
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.places import known_groups, known_topic


class PausingCommand(QueueCommand):
    """Names a topic, and perhaps a group of it."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("topic")
        parser.add_argument("--group", default="", help="only this group (else all of them)")

    def what(self, options: dict[str, Any]) -> str:
        """Return what is meant, in words; refuse what is not there."""
        if options["group"]:
            known_groups(self.alias, options["topic"], [options["group"]])
            return f"group {options['group']!r} of topic {options['topic']!r}"
        known_topic(self.alias, options["topic"])
        return f"topic {options['topic']!r}"


class Command(PausingCommand):
    """Pausing twice is no error: the exit code tells that it is paused."""

    help = "Pause a topic, or one group of it: nothing new is handed out until queueresume; publishing goes on."

    def handle(self, *args: Any, **options: Any) -> None:
        """Pause."""
        what = self.what(options)
        if pause(self.alias, options["topic"], options["group"]):
            self.say(
                f"Paused {what}. Within a second no handler starts; what runs ends, and messages are kept.", done=True
            )
        else:
            self.say(f"There was nothing to do: {what} was paused already.")
