"""Resuming a paused topic or group (`queueresume`)."""

from __future__ import annotations

from typing import Any

from sqlqueue.management.commands.queuepause import PausingCommand
from sqlqueue.operations.topics import resume


class Command(PausingCommand):
    """Resumes. It is no error if the topic or group is not paused: exit code 0 means that it is not paused."""

    help = "Resume a topic, or one group of it, that queuepause has paused."

    def handle(self, *args: Any, **options: Any) -> None:
        """Resume the topic or the group."""
        label = self.label(options)
        if resume(self.log, options["topic"], options["group"]):
            self.say(f"Resumed {label}.", done=True)
        else:
            self.say(f"There was nothing to do: {label} was not paused.")
