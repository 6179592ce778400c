"""Recovery after a restore (`queuerecover`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from sqlqueue.management.base import QueueCommand
from sqlqueue.operations.recover import preview, recover


class Command(QueueCommand):
    """Shows the leases, asks the operator, and makes everything void that a process knew before the restore."""

    help = "After a dump was restored: free all leases, and give them fencing tokens that no process has had."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        self.add_caution(parser)
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Count, ask and recover."""
        found = preview(self.log)
        self.say(
            f"There are {found.leases} leases, of which processes hold {found.held}, and {found.offsets} offset rows. "
            f"The highest fencing token is {found.token}."
        )
        if found.sequence:
            self.say(f"The sequence of offsets is {found.sequence} behind, and will be raised.")
        if self.proceed(options, "Free all leases, with new fencing tokens?", preview=found._asdict()):
            found = recover(self.log)
            text = f"All leases are free, and their fencing token is {found.token}: start the consumers."
            self.done(text, **found._asdict())
