"""What commands share about operator requests: they list them, wait for one, and cancel one."""

from __future__ import annotations

import getpass
from collections.abc import Mapping

from django.core.management.base import CommandError

from sqlqueue.management.base import INTERRUPTED, QueueCommand
from sqlqueue.models import Request
from sqlqueue.models.request import CANCELLED, DONE, REPLAY, RESCHEDULE
from sqlqueue.operations import requests

LOOK_EVERY = 0.5  # seconds between two looks at a request
NOUNS = {REPLAY: "replay", RESCHEDULE: "rescheduling"}


def wait(command: QueueCommand, request: Request, name: str) -> None:
    """Take part in a request until it is done. name: the command's. Raises CommandError if it fails or is cancelled."""
    try:
        with command.progress(request.kind, request.total) as progress:
            while request.active:
                more = requests.carry_out(command.log)
                request.refresh_from_db(using=command.log.alias)
                progress.reach(request.done)
                if request.active and not more:
                    command.pause(LOOK_EVERY)
    except KeyboardInterrupt:
        text = f"the consumer processes go on with it: `{name} cancel {request.pk}` stops it"
        raise CommandError(text, returncode=INTERRUPTED) from None
    if request.state != DONE:
        raise CommandError(
            f"{request.state} after {request.done} of {request.total}: {request.note or 'by an operator'}"
        )


def show_list(command: QueueCommand, kind: str, options: Mapping[str, str], as_json: bool, noted: bool = False) -> None:
    """Print the newest requests of a kind. options: those that are shown, by their names, with their headings; noted:
    whether the table has the notes, which JSON always has."""
    found = list(Request.objects.using(command.log.alias).filter(kind=kind).order_by("-id")[:20])
    names = ("id", "topic", "consumer_group", *options, "state", "done", "total", "rate", "ordered_by", "note")
    rows = [[one.options.get(name) if name in options else getattr(one, name) for name in names] for one in found]
    if as_json:
        command.as_json([dict(zip(names, row)) for row in rows])
        return
    if not rows:
        command.say(f"There are no {NOUNS[kind]}s.")
        return
    headings = ("number", "topic", "group", *options.values(), "state", "done", "of", "rate", "by", "note")
    columns = len(headings) if noted else len(headings) - 1
    command.table(headings[:columns], [["—" if one in (None, "") else one for one in row[:columns]] for row in rows])


def cancel(command: QueueCommand, kind: str, number: int, name: str) -> None:
    """Cancel a request of a kind. name: the command's. Raises CommandError if there is no such request."""
    request = Request.objects.using(command.log.alias).filter(kind=kind, pk=number).first()
    if request is None:
        raise CommandError(f"there is no {NOUNS[kind]} {number}: `{name} orders` lists them")
    if requests.cancel(command.log, number):
        command.say(f"{NOUNS[kind].capitalize()} {number} is {CANCELLED}.", done=True)
    else:
        command.say(f"There was nothing to do: {NOUNS[kind]} {number} is {request.state}.")


def requested_by(name: str) -> str:
    """Return who makes a request by a command of this name."""
    try:
        return f"{getpass.getuser()} ({name})"[:150]
    except (KeyError, OSError, ImportError):  # a user without a name, as in many containers
        return name
