"""The pulse of a consumer process: what its loop says of itself, in memory that its supervisor can see."""

from __future__ import annotations

import ctypes
import time
from multiprocessing.context import SpawnContext


class _Beats(ctypes.Structure):
    """Times are the machine's monotonic ones, 0 for never."""

    _fields_ = (
        ("began", ctypes.c_double),
        ("started", ctypes.c_double),
        ("turned", ctypes.c_double),
        ("kept", ctypes.c_double),
        ("stopping", ctypes.c_bool),
    )


class Pulse:
    """One process's. To feel it costs the process nothing, not even while it hangs."""

    def __init__(self, context: SpawnContext | None = None):
        self._beats = _Beats() if context is None else context.RawValue(_Beats)
        self._beats.began = time.monotonic()

    def started(self) -> None:
        """Its groups are registered, and it is known to be alive."""
        self._beats.started = time.monotonic()

    def turned(self) -> None:
        """The loop begins another turn, or another try to reach the database."""
        self._beats.turned = time.monotonic()

    def kept(self) -> None:
        """The heartbeat and the leases have been renewed."""
        self._beats.kept = time.monotonic()

    def stopping(self) -> None:
        """It takes no more work."""
        self._beats.stopping = True

    @property
    def since_turn(self) -> float:
        """For how many seconds the loop has not turned; while it starts, since it began to."""
        return time.monotonic() - max(self._beats.turned, self._beats.began)

    @property
    def hung_for(self) -> float:
        """For how many seconds a loop has not turned that had begun to; 0 for one that has not begun."""
        return time.monotonic() - self._beats.turned if self._beats.turned else 0.0

    @property
    def since_kept(self) -> float | None:
        """How many seconds ago the leases were renewed; None: never."""
        return time.monotonic() - self._beats.kept if self._beats.kept else None

    @property
    def has_started(self) -> bool:
        """It has taken up its work, whatever came of it."""
        return bool(self._beats.started)

    @property
    def serves(self) -> bool:
        """It has started, and does not stop."""
        return self.has_started and not self._beats.stopping
