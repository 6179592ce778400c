"""What signals do in a consumer process: how many requests to stop they are, and what they do in a child that a handler
has forked."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import Final

ONE_REQUEST: Final = 0.2  # seconds: GNU timeout sends a signal to its command, and again to the command's process group


class StopRequests:
    """Counts requests to stop. Signals that come within ONE_REQUEST of the first of them are one request."""

    def __init__(self) -> None:
        self.count = 0
        self._counted_at = -math.inf

    def add(self) -> int:
        """Count a signal, in its handler; return the number of requests so far."""
        now = time.monotonic()
        if now > self._counted_at + ONE_REQUEST:
            self._counted_at = now
            self.count += 1
        return self.count


Handler = Callable[[int, FrameType | None], None]


def let_children_end(handler: Handler, numbers: Collection[signal.Signals]) -> None:
    """Let these signals end children that this process forks from now on, as they end any process, and as
    multiprocessing expects: `handler` is about this process.

    They are blocked while a child is forked. Python would drop one that comes before the child can handle it.
    """
    masks: dict[int, set[signal.Signals]] = {}  # by the thread that forks

    def block() -> None:
        masks[threading.get_ident()] = set(signal.pthread_sigmask(signal.SIG_BLOCK, numbers))  # type: ignore[arg-type]

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def reset() -> None:
        for number in numbers:
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)


def let_sigterm_end_pid_1(status: int) -> None:
    """Let SIGTERM end this process, with this status, if it is the first one of a container: the system drops signals
    for which such a process has no handler. For the time in which it has begun nothing."""
    if os.getpid() == 1 and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(status))
