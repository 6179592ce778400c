"""Operators' requests, which the consumer processes carry out: list, cancel (`queuerequests`); and how the commands
that make one follow it."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.management import arguments
from sqlqueue.management.base import INTERRUPTED, QueueCommand
from sqlqueue.models import Request
from sqlqueue.models.request import CANCELLED, DONE
from sqlqueue.operations import requests

LOOK_EVERY = 0.5  # seconds between two looks at a request
LISTED = 20
COLUMNS = ("number", "kind", "topic", "group", "options", "state", "done", "of", "rate", "by", "note")


class Command(QueueCommand):
    """Has the operations list and cancel."""

    every_database = ("list",)
    help = "List the requests of queuedlq replay, queuereschedule and the admin, or cancel one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the operations, each with its arguments."""
        operations = self.operations(parser)
        self.operation(operations, "list", self._list, f"the newest {LISTED}, the newest first", json=True)
        cancelling = self.operation(
            operations, "cancel", self._cancel, "stop a request; what has been done of it already stays done"
        )
        cancelling.add_argument("number", type=arguments.offset)

    def _list(self, options: dict[str, Any]) -> None:
        found = list(Request.objects.using(self.log.alias).order_by("-id")[:LISTED])
        if self.json:
            self.as_json([_plain(one) for one in found])
        elif found:
            self.table(COLUMNS, map(_row, found))
        else:
            self.say("There are no requests.")

    def _cancel(self, options: dict[str, Any]) -> None:
        number = options["number"]
        request = Request.objects.using(self.log.alias).filter(pk=number).first()
        if request is None:
            raise CommandError(f"there is no request {number}: `queuerequests list` shows them")
        if requests.cancel(self.log, number):
            self.done(f"Request {number} is {CANCELLED}.")
        else:
            self.say(f"There was nothing to do: request {number} is {request.state}.")


def _plain(one: Request) -> dict[str, Any]:
    names = ("id", "kind", "topic", "consumer_group", "options", "state", "done", "total", "rate", "ordered_by", "note")
    return {name: getattr(one, name) for name in names}


def _row(one: Request) -> list[object]:
    given = ", ".join(f"{name}={value}" for name, value in one.options.items() if value not in (None, "", False, []))
    cells = _plain(one) | {"options": given}
    return ["—" if value in (None, "") else value for value in cells.values()]


def follow(command: QueueCommand, request: Request, done: str, wait: bool) -> None:
    """Say that a request was made, and with `wait` take part in it until it is done. done: what was done with so many.
    Raises CommandError if it fails or is cancelled."""
    command.say(f"Request {request.pk}: {request.total}.")
    if not wait:
        command.say("The consumer processes carry it out; `queuerequests list` shows the progress.")
        return
    try:
        with command.progress(request.kind, request.total) as progress:
            while request.active:
                more = requests.carry_out(command.log)
                request.refresh_from_db(using=command.log.alias)
                progress.reach(request.done)
                if request.active and not more:
                    command.pause(LOOK_EVERY)
    except KeyboardInterrupt:
        text = f"the consumer processes go on with it: `queuerequests cancel {request.pk}` stops it"
        raise CommandError(text, returncode=INTERRUPTED) from None
    if request.state != DONE:
        why = request.note or "by an operator"
        raise CommandError(f"{request.state} after {request.done} of {request.total}: {why}")
    command.say(f"Done: {request.done} {done}.", done=True)
    if request.note:
        command.note(f"The last one that could not be done: {request.note}")


def requested_by(name: str) -> str:
    """Return who makes a request by a command of this name."""
    try:
        return f"{getpass.getuser()} ({name})"[:150]
    except (KeyError, OSError, ImportError):  # a user without a name, as in many containers
        return name
