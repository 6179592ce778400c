"""Pruning the results of tasks (`queueprune`)."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from sqlqueue.core.bounds import CENTURY, DAY
from sqlqueue.core.keys import did_you_mean
from sqlqueue.log.task_states import FINISHED, Prune, prune, to_prune
from sqlqueue.management.arguments import decimal
from sqlqueue.management.base import QueueCommand
from sqlqueue.models.task_state import FAILED, SUCCESSFUL
from sqlqueue.tasks.queues import backends

AGE = 14.0  # days
days = decimal(0, CENTURY / DAY)


class Command(QueueCommand):
    """Counts the results, asks the operator, and deletes them."""

    every_database = ("",)
    help = "Delete the results of finished tasks before they expire, by age, status, queue and backend."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument(
            "--min-age", type=days, default=AGE, metavar="DAYS", help=f"since the task has finished (default: {AGE:g})"
        )
        parser.add_argument(
            "--failed-min-age", type=days, metavar="DAYS", help="the same for failed tasks (default: --min-age)"
        )
        parser.add_argument("--status", choices=FINISHED, help="only tasks that ended so (default: both)")
        parser.add_argument("--queue", action="append", default=[], help="only of this queue; may be repeated")
        parser.add_argument("--backend", action="append", default=[], help="only of this alias in TASKS, likewise")
        self.add_caution(parser)
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Count, ask and delete. Raises CommandError if --json would need a question."""
        if options["json"] and not (options["no_input"] or options["dry_run"]):
            raise CommandError("--json needs --no-input or --dry-run: it asks no questions")
        wanted = self._wanted(options)
        found = to_prune(self.log, wanted).count()
        deleted = 0
        if not options["json"]:
            self.say(f"There are {found} results of finished tasks to prune.")
        if found and not options["dry_run"]:
            self.confirm(f"Delete {found} results of tasks?", options)
            with self.progress("prune", found) as progress:
                for some in prune(self.log, wanted):
                    deleted += some
                    progress.reach(deleted)
        if options["json"]:
            self.as_json({"results": found, "deleted": deleted})
        elif options["dry_run"]:
            self.say("Nothing was done.")
        else:
            self.say(f"Deleted {deleted} results.", done=True)

    def _wanted(self, options: dict[str, Any]) -> Prune:
        known = {one.alias: one.queues for one in backends()}
        for name in options["backend"]:
            if name not in known:
                raise CommandError(f"TASKS has no backend {name!r} that is sqlqueue's.{did_you_mean(name, known)}")
        now, age, of_failed = timezone.now(), options["min_age"], options["failed_min_age"]
        before = {
            SUCCESSFUL: now - timedelta(days=age),
            FAILED: now - timedelta(days=age if of_failed is None else of_failed),
        }
        chosen = {status: at for status, at in before.items() if options["status"] in (None, status)}
        return Prune(chosen.get(SUCCESSFUL), chosen.get(FAILED), options["queue"], options["backend"])
