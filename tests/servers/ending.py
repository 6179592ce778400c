"""Ends private servers with the process that has started them, however that is asked to end."""

import os
import signal
import sys
import threading
from types import FrameType

NUMBERS = signal.SIGTERM, signal.SIGHUP  # Ctrl-C raises an exception already


def unwind_when_terminated() -> None:
    """Let signals that would end this process at once raise SystemExit instead, so that what it has started is ended.
    A process that handles or ignores them itself does so still, and so does one that calls this in another thread than
    the main one."""
    owner = os.getpid()

    def leave(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a fork's
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        for each in NUMBERS:
            signal.signal(each, signal.SIG_IGN)  # once is enough
        sys.exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        for number in NUMBERS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, leave)
