"""Children that are forked while the engine runs in this process: none of them goes on as the engine.

A handler may fork, as multiprocessing does, and its child may do what it likes. Where it returns into the engine's
code, by sys.exit() too, it ends: there the parent goes on.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_engines: set[object] = set()  # those that run in this process
# How many forks lie between the process in which the first engine ran and this one: another number in a child than in
# its parent, where the engine runs.
generation = 0


@contextmanager
def hosting() -> Iterator[None]:
    """A context in which an engine runs in this process."""
    engine = object()
    _engines.add(engine)
    try:
        yield
    finally:
        _engines.discard(engine)


def hosts() -> bool:
    """Tell whether an engine runs in this process."""
    return bool(_engines)


def leave_if_forked(since: int) -> None:
    """End this process at once if it was forked since `generation` was this: with the status of the SystemExit that is
    being handled, 1 for another exception, which is printed, and 0 for none."""
    if since == generation:
        return
    error, status = sys.exc_info()[1], 1
    try:
        if error is None:
            status = 0
        elif not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif error.code is None or isinstance(error.code, int):
            status = (error.code or 0) & 0xFF
        else:
            print(error.code, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # there may be none
                stream.flush()
    finally:
        os._exit(status)


def _count_fork() -> None:
    global generation
    if _engines:
        _engines.clear()
        generation += 1


os.register_at_fork(after_in_child=_count_fork)


def exit_name(status: int) -> str:
    """Return the name of the signal that ended a process (-9: SIGKILL), or its exit status as text."""
    try:
        return signal.Signals(-status).name if status < 0 else str(status)
    except ValueError:
        return str(status)
