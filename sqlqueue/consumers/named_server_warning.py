"""The warning that a thread is not connected to the named server of a cluster."""

from __future__ import annotations

import logging
import time

from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.server_identity import NotNamedServer

logger = logging.getLogger("sqlqueue")

AGAIN = 300.0  # seconds


class NamedServerWarning:
    """Logs for one thread that it is elsewhere: once, and again every five minutes, or if another server is named
    meanwhile. who: the field that names it, as in the log."""

    def __init__(self, **who: str):
        self._who = who
        self._writer = ""
        self._again_at = 0.0

    def elsewhere(self, error: NotNamedServer) -> None:
        """To be called each time the thread has looked, and is elsewhere."""
        now = time.monotonic()
        if error.writer != self._writer or now >= self._again_at:
            self._writer, self._again_at = error.writer, now + AGAIN
            logger.warning(logfmt("not_the_named_server", **self._who, meaning=error))

    def over(self) -> None:
        """To be called when it is not elsewhere."""
        self._writer = ""
