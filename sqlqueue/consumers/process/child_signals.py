"""What a signal does in a child that a handler has forked."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType

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
