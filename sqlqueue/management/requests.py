"""What the commands share that make a request, which the consumer processes carry out."""

from __future__ import annotations

import getpass

from django.core.management.base import CommandError

from sqlqueue.management.base import INTERRUPTED, QueueCommand
from sqlqueue.models import Request
from sqlqueue.models.request import DONE
from sqlqueue.operations import requests

LOOK_EVERY = 0.5  # seconds between two looks at a request


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
