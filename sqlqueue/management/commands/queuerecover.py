"""Recovery after a restore (`queuerecover`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.management.base import QueueCommand
from sqlqueue.operations.recover import Recovery, preview, recover


class Command(QueueCommand):
    """Shows the leases, asks the operator, and makes everything void that a process knew before the restore."""

    help = "After a dump was restored: free all leases, and give them fencing tokens that no process has had."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        self.add_caution(parser)
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Count, ask and recover. Raises CommandError if --json would need a question."""
        if options["json"] and not (options["no_input"] or options["dry_run"]):
            raise CommandError("--json needs --no-input or --dry-run: it asks no questions")
        found = preview(self.log)
        if not options["json"]:
            self._show(found)
        if not options["dry_run"]:
            self.confirm("Free all leases, with new fencing tokens?", options)
            found = recover(self.log)
        if options["json"]:
            self.as_json({**found._asdict(), "done": not options["dry_run"]})
        elif options["dry_run"]:
            self.say("Nothing was done.")
        else:
            self.say(f"All leases are free, and their fencing token is {found.token}: start the consumers.", done=True)

    def _show(self, found: Recovery) -> None:
        self.say(
            f"There are {found.leases} leases, of which processes hold {found.held}, and {found.offsets} offset rows. "
            f"The highest fencing token is {found.token}."
        )
        if found.sequence:
            self.say(f"The sequence of offsets is {found.sequence} behind, and will be raised.")
