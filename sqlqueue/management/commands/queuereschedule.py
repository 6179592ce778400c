"""Rescheduling many waiting deliveries of a group (`queuereschedule`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.core.bounds import LEAST_RATE, MOST_ATTEMPTS, MOST_RATE
from sqlqueue.exceptions import LONGEST_DELAY
from sqlqueue.management import arguments
from sqlqueue.management.arguments import HELP, known_groups, known_topic, offset_above
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.commands.queuerequests import follow, requested_by
from sqlqueue.operations.reschedule_requests import (
    FAILING,
    MOST_COUNTED,
    POSTPONED,
    WaitingDeliveries,
    request_rescheduling,
)


class Command(QueueCommand):
    """Counts the deliveries, asks the operator, and requests that the consumer processes make them due."""

    help = "Make many waiting deliveries of a group due, at once or at a rate: those that failed or were postponed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("topic")
        parser.add_argument("group")
        parser.add_argument("--which", default="", choices=(FAILING, POSTPONED), help="only these (default: both)")
        parser.add_argument("--error", default="", help="only those whose last error contains this text")
        parser.add_argument("--key", default="", help="only messages of exactly this key")
        parser.add_argument("--from", dest="start", metavar="WHERE", help=f"only messages from {HELP} on")
        parser.add_argument("--to", dest="end", metavar="WHERE", help="only messages before such an offset")
        delay = arguments.decimal(0, LONGEST_DELAY)
        parser.add_argument(
            "--delay", type=delay, default=0.0, help="seconds from when it is rescheduled (default 0: at once)"
        )
        attempts = arguments.whole(0, MOST_ATTEMPTS)
        parser.add_argument(
            "--attempts", type=attempts, help="how many attempts each counts as having had; 0: a fresh start"
        )
        parser.add_argument("--rate", type=arguments.decimal(LEAST_RATE, MOST_RATE), help="at most so many a second")
        parser.add_argument("--wait", action="store_true", help="take part in it, and exit when it is complete")
        self.add_caution(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Count, ask and make the request. Raises CommandError if no delivery waits."""
        topic = known_topic(self.log, options["topic"])
        [group] = known_groups(self.log, topic.name, [options["group"]])
        low = 0 if options["start"] is None else offset_above(self.log, options["start"])
        high = None if options["end"] is None else offset_above(self.log, options["end"])
        waiting = WaitingDeliveries(topic.name, group, options["which"], options["error"], low, high, options["key"])
        waiting.check(self.log)
        count = waiting.count(self.log)
        deliveries = f"{count}{' or more' if count == MOST_COUNTED else ''} deliveries"
        self.say(f"{deliveries} of group {group!r} wait.")
        if not count and not options["dry_run"]:
            raise CommandError("nothing to do")
        if self.proceed(options, f"Reschedule {deliveries} of group {group!r} of topic {topic.name!r}?"):
            changes = {name: options[name] for name in ("delay", "attempts", "rate")}
            by = requested_by("queuereschedule")
            request = request_rescheduling(self.log, waiting, **changes, requested_by=by)
            follow(self, request, "were rescheduled", options["wait"])
