"""What asks a process to stop: how many requests its signals are."""

from __future__ import annotations

import math
import time
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
