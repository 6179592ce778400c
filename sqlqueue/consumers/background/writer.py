"""The named-server task: in a cluster of several writable servers it keeps one of them named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import writer
from sqlqueue.database.insert_sql import NAMED
from sqlqueue.database.log import Log
from sqlqueue.database.writer import WriterState
from sqlqueue.exceptions import ConfigurationError

logger = logging.getLogger("sqlqueue")

INTERVAL = 0.2  # seconds
RENEW_EVERY = 1.0  # seconds
TAKE_OVER_AFTER = 5.0  # seconds without a renewal
# Seconds that the barrier may take. If others took over meanwhile, on a busy cluster no log would ever be open.
OPEN_AFTER = 15.0
HELP_AFTER = 2.0  # seconds in which the process that has named its server opens the log there by itself


class NamedServerTask(BackgroundTask):
    """Renews the named server's name where this connection leads there; lets the server that it leads to take its
    place once that is not renewed any more. changed: called when another server is named than before, and when the log
    is open there.

    What it has seen counts over a lost connection, too: a name that is as it was has not been renewed meanwhile.
    elsewhere: this connection leads to another server than the named one, so the loop, whose connection does lead
    there, is to renew its name.
    """

    anywhere = True

    def __init__(self, log: Log, changed: Callable[[], None]):
        super().__init__(log, "named-server", INTERVAL)
        self._changed = changed
        self.elsewhere = False
        self._seen: WriterState | None = None
        self._since = self._renewed = 0.0
        self._took = -1  # how often the name had been renewed when this process has changed it

    def run_once(self) -> bool:
        """Do what is due; return whether the next step is."""
        now = time.monotonic()
        standing = writer.writer_state(self.log)
        if not standing.here:
            raise ConfigurationError(
                f"sqlqueue_publish_gate lacks its row {NAMED}, so no server of the cluster can be named: run migrate"
            )
        seen, self._seen = self._seen, standing
        if seen is None or (standing.server, standing.renewals) != (seen.server, seen.renewals):
            self._since = now
        if seen is not None and standing.writer != seen.writer:
            self._changed()
        waited = now - self._since
        self.elsewhere = standing.writer != standing.here
        if standing.writer == standing.here:
            if now - self._renewed >= RENEW_EVERY:
                self._renewed = now
                writer.renew(self.log)
            return False
        if standing.server == standing.here:
            if standing.renewals != self._took and waited < HELP_AFTER:
                return False  # one barrier is enough
            if writer.open_log(self.log):
                logger.warning(logfmt("log_server_opened", server=standing.here))
            return True
        if not standing.server or waited >= (OPEN_AFTER if standing.closed else TAKE_OVER_AFTER):
            if writer.take_over(self.log, standing):
                self._took = standing.renewals + 1
                logger.warning(logfmt("log_server_named", server=standing.here, former=standing.server))
            return True
        return False
