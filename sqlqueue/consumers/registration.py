"""The registration of a process's groups: at its start, and of those that begin at the log's end once that is known."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.lines import line
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.log import groups
from sqlqueue.log.topics import topic_info

logger = logging.getLogger("sqlqueue")


class Registration:
    """The control thread's. Never waits: a transaction that publishes may stay open for long, and other groups have
    work to do meanwhile."""

    def __init__(self, alias: str, subscriptions: Sequence[Subscription]):
        self.alias, self._subscriptions = alias, subscriptions
        self._latest: list[Subscription] = []  # not registered yet
        self._begin = 0  # where they will

    def start(self) -> None:
        """Register every group that begins at the log's beginning, unless it is; take note of the others."""
        known = groups.registered(self.alias, {subscription.consumer.topic for subscription in self._subscriptions})
        for subscription in self._subscriptions:
            group, topic = subscription.place
            if subscription.place in known:
                continue
            if subscription.consumer.start == groups.LATEST:
                topic_info(self.alias, topic)
                self._latest.append(subscription)
            else:
                groups.register(self.alias, group, topic)
        self.forget()

    @property
    def complete(self) -> bool:
        """All groups are registered."""
        return not self._latest

    def go_on(self, horizon: Horizon) -> bool:
        """Look whether everything that was there at the start is final; register the others then. Return whether any
        were. They begin where the log ended at the start, however long that has taken."""
        if self.complete or horizon.probe(self._begin) < self._begin:
            return False
        for subscription in self._latest:
            groups.register_at(self.alias, *subscription.place, self._begin)
        self._latest = []
        return True

    def say(self) -> None:
        """Tell people what is not registered yet."""
        for group, topic in (subscription.place for subscription in self._latest):
            meaning = "a transaction that publishes is open, so where the log ends is not known yet"
            logger.warning(line("registration_waits", group=group, topic=topic, meaning=meaning))

    def forget(self) -> None:
        """The server was restarted, or it is the start: look anew where the log ends."""
        self._begin = 0 if self.complete else highest_offset(self.alias)
