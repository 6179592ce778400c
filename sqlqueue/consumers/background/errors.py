"""What goes wrong again and again in one thread of a process."""

from __future__ import annotations

import logging
import time
from typing import Final

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import message_of, storable
from sqlqueue.database.server_identity import NotNamedServer

logger = logging.getLogger("sqlqueue")

FAILING: Final = 3  # errors in a row: a database that is restarted causes fewer
FIRST_PAUSE: Final = 0.1  # seconds before the next try; it doubles with each error
LONGEST_PAUSE: Final = 2.0


class Trouble:
    """Counts the errors in a row of a part of a process, whose name operators know."""

    def __init__(self, name: str):
        self.name = name
        self.failures, self._error = 0, ""

    def failed(self, error: BaseException) -> None:
        """Note an error. From any thread."""
        self._error = storable(message_of(error) or type(error).__name__)
        self.failures += 1

    def over(self) -> None:
        """Note that it has succeeded."""
        self.failures = 0

    @property
    def pause(self) -> float:
        """Seconds to wait before it is tried again; 0 without an error."""
        return min(FIRST_PAUSE * 2 ** min(self.failures - 1, 10), LONGEST_PAUSE) if self.failures else 0.0

    @property
    def failing(self) -> str:
        """The name and the last error of a part that fails again and again; "" for another."""
        return f"{self.name}: {self._error}" if self.failures >= FAILING else ""


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
