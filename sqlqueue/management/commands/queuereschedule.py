"""Rescheduling many waiting deliveries of a group (`queuereschedule`)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.core.bounds import LEAST_RATE, MOST_ATTEMPTS, MOST_RATE
from sqlqueue.exceptions import LONGEST_DELAY
from sqlqueue.management import arguments, requests
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.positions import HELP, known_groups, known_topic, offset_above
from sqlqueue.models.request import RESCHEDULE
from sqlqueue.operations.reschedule_requests import (
    FAILING,
    MOST_COUNTED,
    POSTPONED,
    WaitingDeliveries,
    request_rescheduling,
)

NAME = "queuereschedule"


class Command(QueueCommand):
    """Has the operations order, orders and cancel."""

    every_database = ("orders",)
    help = "Make many waiting deliveries of a group due, at once or at a rate: those that failed or were postponed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the operations, each with its arguments."""
        operations = self.add_operations(parser)
        ordering = operations.add_parser("order", help="reschedule them; the consumer processes carry it out")
        ordering.add_argument("topic")
        ordering.add_argument("group")
        ordering.add_argument("--which", default="", choices=(FAILING, POSTPONED), help="only these (default: both)")
        ordering.add_argument("--error", default="", help="only those whose last error contains this text")
        ordering.add_argument("--key", default="", help="only messages of exactly this key")
        ordering.add_argument("--from", dest="start", metavar="WHERE", help=f"only messages from {HELP} on")
        ordering.add_argument("--to", dest="end", metavar="WHERE", help="only messages before such an offset")
        delay = arguments.decimal(0, LONGEST_DELAY)
        ordering.add_argument(
            "--delay", type=delay, default=0.0, help="seconds from when it is rescheduled (default 0: at once)"
        )
        attempts = arguments.whole(0, MOST_ATTEMPTS)
        ordering.add_argument(
            "--attempts", type=attempts, help="how many attempts each counts as having had; 0: a fresh start"
        )
        ordering.add_argument("--rate", type=arguments.decimal(LEAST_RATE, MOST_RATE), help="at most so many a second")
        ordering.add_argument("--wait", action="store_true", help="take part in it, and exit when it is complete")
        self.add_caution(ordering)
        listing = operations.add_parser("orders", help="list the reschedulings, the newest first")
        self.add_json(listing)
        cancelling = operations.add_parser(
            "cancel", help="stop a rescheduling; what it has rescheduled already stays so"
        )
        cancelling.add_argument("number", type=arguments.offset)

    def handle(self, *args: Any, **options: Any) -> None:
        """Carry out the chosen operation."""
        operations: dict[str, Callable[[dict[str, Any]], None]] = {
            "order": self._order,
            "orders": self._orders,
            "cancel": self._cancel,
        }
        operations[options["operation"]](options)

    def _order(self, options: dict[str, Any]) -> None:
        topic = known_topic(self.log, options["topic"])
        [group] = known_groups(self.log, topic.name, [options["group"]])
        low = 0 if options["start"] is None else offset_above(self.log, options["start"])
        high = None if options["end"] is None else offset_above(self.log, options["end"])
        waiting = WaitingDeliveries(topic.name, group, options["which"], options["error"], low, high, options["key"])
        waiting.check(self.log)
        count = waiting.count(self.log)
        deliveries = f"{count}{' or more' if count == MOST_COUNTED else ''} deliveries"
        if options["dry_run"]:
            self.say(f"{deliveries} would be rescheduled. Nothing was done.")
            return
        if not count:
            raise CommandError(f"no such delivery of group {group!r} is waiting: nothing to do")
        self.confirm(f"Reschedule {deliveries} of group {group!r} of topic {topic.name!r}?", options)
        request = request_rescheduling(
            self.log,
            waiting,
            delay=options["delay"],
            attempts=options["attempts"],
            rate=options["rate"],
            requested_by=requests.requested_by(NAME),
        )
        self.say(f"Ordered as number {request.pk}: {request.total} deliveries.")
        if options["wait"]:
            requests.wait(self, request, NAME)
            self.say(f"Done: {request.done} were rescheduled.", done=True)
        else:
            self.say("The consumer processes carry it out; `queuereschedule orders` shows the progress.")

    def _orders(self, options: dict[str, Any]) -> None:
        shown = {"which": "which", "error": "error", "key": "key"}
        requests.show_list(self, RESCHEDULE, shown, options["json"])

    def _cancel(self, options: dict[str, Any]) -> None:
        requests.cancel(self, RESCHEDULE, options["number"], NAME)
