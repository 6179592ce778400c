"""The relay task: moves messages that were published in a transaction on this shard to another one."""

from __future__ import annotations

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.database import retries
from sqlqueue.log.relay_moves import move

INTERVAL = 0.5  # seconds


class RelayTask(BackgroundTask):
    """Moves what waits for one shard: a task for each, so that one that is down, or hangs, holds up no other."""

    name = "relay"

    def __init__(self, alias: str, shard: str):
        super().__init__(alias, INTERVAL)
        self._shard = shard

    def run_once(self) -> bool:
        """Move one batch; return whether there may be more."""
        try:
            return move(self.alias, self._shard).more
        except Error as error:
            if retries.classify(error) is retries.ErrorKind.GONE:
                retries.drop_connection(settings.shards[self._shard])
            raise
