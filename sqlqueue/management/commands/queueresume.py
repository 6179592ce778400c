"""Resume what queuepause has paused."""

from __future__ import annotations

from typing import Any

from sqlqueue.log.pause import resume
from sqlqueue.management.commands.queuepause import PausingCommand


class Command(PausingCommand):
    """Resuming twice is no error: the exit code tells that it runs."""

    help = "Resume a topic, or one group of it, that queuepause has paused."

    def handle(self, *args: Any, **options: Any) -> None:
        """Resume."""
        what = self.what(options)
        if resume(self.alias, options["topic"], options["group"]):
            self.say(f"Resumed {what}.", done=True)
        else:
            self.say(f"There was nothing to do: {what} was not paused.")
