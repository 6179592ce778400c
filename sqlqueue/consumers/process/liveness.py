"""The liveness of a consumer process: when its loop last ran, in memory that it shares with its supervisor."""

from __future__ import annotations

import ctypes
import time
from multiprocessing.context import SpawnContext


class _Times(ctypes.Structure):
    """Monotonic seconds of this machine, 0 for never."""

    _fields_ = (
        ("began", ctypes.c_double),
        ("started", ctypes.c_double),
        ("iteration", ctypes.c_double),
        ("renewal", ctypes.c_double),
        ("stopping", ctypes.c_double),
    )


class Liveness:
    """The liveness of one process. The supervisor reads it without the process, even while that hangs."""

    def __init__(self, context: SpawnContext | None = None):
        self._times = _Times() if context is None else context.RawValue(_Times)
        self._times.began = time.monotonic()

    def mark(self, what: str) -> None:
        """Record that this happens now. started: the groups are registered and the first heartbeat is written;
        iteration: the loop begins one, or another try to reach the database; renewal: the heartbeat and the leases have
        been renewed; stopping: the process takes no more work."""
        setattr(self._times, what, time.monotonic())

    @property
    def since_iteration(self) -> float:
        """Seconds since the loop began its last iteration; before the first one, since the process began."""
        return time.monotonic() - max(self._times.iteration, self._times.began)

    @property
    def hung_for(self) -> float:
        """Seconds since the loop began its last iteration; 0 before the first one."""
        return time.monotonic() - self._times.iteration if self._times.iteration else 0.0

    @property
    def since_renewal(self) -> float | None:
        """Seconds since the leases were renewed; None if they never were."""
        return time.monotonic() - self._times.renewal if self._times.renewal else None

    @property
    def has_started(self) -> bool:
        """Whether the process has started to work."""
        return bool(self._times.started)

    @property
    def serves(self) -> bool:
        """Whether the process has started and is not stopping."""
        return self.has_started and not self._times.stopping
