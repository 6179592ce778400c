"""What becomes of a message that needs code which this process does not have: a task, or a payload type."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Final

from sqlqueue.conf import settings
from sqlqueue.exceptions import Postpone, Reject

TRIED_EVERY: Final = 10.0  # seconds
_loaded: Final = time.monotonic()  # when this process's code was


def unknown(reason: object, entered: datetime) -> Postpone | Reject:
    """Return what settles it: it waits, uncharged, for a process that has the code, until UNKNOWN_FOR has passed both
    since it entered the log and since this process has begun; then it is a dead letter."""
    age = (datetime.now(timezone.utc) - entered).total_seconds()
    left = settings.UNKNOWN_FOR - min(age, time.monotonic() - _loaded)
    if left <= 0:
        return Reject(f"no process that has what it needs had it within UNKNOWN_FOR: {reason}")
    return Postpone(f"it waits for a process that has what it needs: {reason}", delay=min(left, TRIED_EVERY))
