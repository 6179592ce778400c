"""Exit statuses of processes, as names."""

from __future__ import annotations

import signal


def exit_name(status: int) -> str:
    """Return the name of the signal that ended a process (-9: SIGKILL), or its exit status as text."""
    try:
        return signal.Signals(-status).name if status < 0 else str(status)
    except ValueError:
        return str(status)
