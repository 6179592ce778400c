"""The relay task: moves messages that were published in a transaction on this shard to another one."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.database import retries
from sqlqueue.log import grants
from sqlqueue.log.relay_moves import move

INTERVAL = 0.5  # seconds
ALSO_EVERY = 5.0  # seconds
SEEK_EVERY, SEEK_SELDOM = 1.0, 5.0  # seconds between two looks for groups that need a grant, if one does, or none
END_EVERY = 30.0  # seconds between two looks for grants whose revocation no process ends


class RelayTask(BackgroundTask):
    """Moves what waits for one shard: a task for each, so that one that is down, or hangs, holds up no other."""

    name = "relay"

    def __init__(self, alias: str, shard: str):
        super().__init__(alias, INTERVAL)
        self._shard = shard
        self._seek_at = 0.0
        self._also_at = time.monotonic() + ALSO_EVERY
        self.also: Callable[[], None] | None = None  # something else to do now and then
        self._end_at = time.monotonic() + END_EVERY

    def run_once(self) -> bool:
        """Move one batch, and ask for what groups need of that shard to start what comes here by another list of
        shards; return whether there may be more."""
        try:
            more = move(self.alias, self._shard).more
            self._seek()
            return more
        except Error as error:
            if retries.classify(error) is retries.ErrorKind.GONE:
                retries.drop_connection(settings.shards[self._shard])
            raise

    @property
    def asks_home(self) -> bool:
        """Whether it relays to DATABASE's shard: what asks that one as well holds up no other's messages."""
        return settings.shards[self._shard] == settings.home

    def _seek(self) -> None:
        now = time.monotonic()
        if self.also is not None and now >= self._also_at:
            self._also_at = now + ALSO_EVERY
            self.also()
        if now >= self._seek_at:
            missing = grants.seek(self.alias, self._shard).missing
            self._seek_at = now + (SEEK_EVERY if missing else SEEK_SELDOM)
        if now >= self._end_at:
            self._end_at = now + END_EVERY
            grants.end_revocations(self.alias, self._shard)
