"""The registration of a process's groups: at its start, and of those that begin at the log's end once that is known."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import flow, groups
from sqlqueue.log.topics import existing, require_declared, topic_info

logger = logging.getLogger("sqlqueue")


class Registration:
    """Registers the groups of one process; for the control thread. It never waits: a transaction that publishes may
    stay open for long, and other groups have work to do meanwhile."""

    def __init__(self, log: Log, subscriptions: Sequence[Subscription]):
        self.log, self._subscriptions = log, subscriptions
        self._latest: list[Subscription] = []  # not registered yet
        self._undeclared: list[Subscription] = []  # not registered yet: the topic is not declared
        self._begin: int | None = None  # the offset after which groups with start="latest" begin, once it was read

    def start(self) -> None:
        """Register every group that begins at the log's beginning and is not registered; remember the others. The
        group of a topic that is not declared is registered once the topic exists."""
        known = groups.registered(self.log, {subscription.consumer.topic for subscription in self._subscriptions})
        for subscription in self._subscriptions:
            group, topic = subscription.group_topic
            if subscription.group_topic in known:
                continue
            try:
                require_declared(self.log, topic)
            except ConfigurationError as error:
                self._undeclared.append(subscription)
                logger.warning(logfmt("topic_undeclared", group=group, topic=topic, meaning=str(error)))
                continue
            if subscription.consumer.start == groups.LATEST:
                topic_info(self.log, topic)
                self._latest.append(subscription)
            else:
                groups.register(self.log, group, topic)
        self._declare()
        if not self.complete:
            self._begin = highest_offset(self.log)

    @property
    def complete(self) -> bool:
        """Whether every group is registered whose topic is declared."""
        return not self._latest

    def register_latest(self, horizon: Horizon) -> bool:
        """Register the groups with `start="latest"` if all messages that existed at the start are final; return whether
        any group was registered. They begin where the log ended at the start, however long this has taken."""
        if self.complete:
            return False
        if self._begin is None:
            self._begin = highest_offset(self.log, horizon.server)
        if horizon.probe(self._begin) < self._begin:
            return False
        for subscription in self._latest:
            groups.register_at(self.log, *subscription.group_topic, self._begin, horizon.server)
        self._latest = []
        self._declare()
        return True

    def register_declared(self) -> None:
        """Register the groups whose topics were declared since the start, from the beginning of the log."""
        if not self._undeclared:
            return
        there = existing(self.log, {subscription.consumer.topic for subscription in self._undeclared})
        for subscription in [one for one in self._undeclared if one.consumer.topic in there]:
            groups.register(self.log, *subscription.group_topic)
            self._undeclared.remove(subscription)
        self._declare()

    def _declare(self) -> None:
        """Store the groups' active hours and limits, as this process has them."""
        consumers = [subscription.consumer for subscription in self._subscriptions]
        flow.declare(self.log, {(each.group, each.topic): each.flow for each in consumers if each.declares})

    def warn_waiting(self) -> None:
        """Log which groups are not registered yet."""
        for group, topic in (subscription.group_topic for subscription in self._latest):
            meaning = "a transaction that publishes is open, so where the log ends is not known yet"
            logger.warning(logfmt("registration_waits", group=group, topic=topic, meaning=meaning))

    def forget_end(self) -> None:
        """Forget where the log ended: the server has changed, and another log may end elsewhere."""
        self._begin = None
