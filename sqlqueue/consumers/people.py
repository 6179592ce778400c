"""Topics that people work on: a consumer whose handler hands every message over to them."""

from __future__ import annotations

from typing import Any

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import Consumer, Registry, build
from sqlqueue.core.setting.topics import PEOPLE
from sqlqueue.exceptions import HandOver

OPTIONS = {"group": PEOPLE, "ordering": "none", "max_attempts": None}


def hand_over_everything(delivery: Any) -> None:
    """Hand a message over, whatever is in it."""
    raise HandOver


def add_consumers(registry: Registry) -> None:
    """Register the consumer of each topic with `worked_by`, and no others that were registered so before."""
    for group_topic in [one for one, made in registry.consumers.items() if made.handler is hand_over_everything]:
        del registry.consumers[group_topic]
    for topic, options in settings.named_topics().items():
        if options.worked_by == PEOPLE:
            registry.add(Consumer(topic=topic, handler=hand_over_everything, **build(topic, OPTIONS)))


def connect(registry: Registry) -> None:
    """Let the registry ask for them."""
    if add_consumers not in registry.sources:
        registry.sources.append(add_consumers)
