"""People's work as an effect, and the consumers of topics on which every message becomes a work item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import Consumer, Registry, build
from sqlqueue.core.effects import Count, Effect, EffectWrite
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.lease import HeldLease
from sqlqueue.core.setting.topics import PEOPLE
from sqlqueue.exceptions import HandOver
from sqlqueue.log import work_collect, work_items
from sqlqueue.models import WorkItem
from sqlqueue.models.work_item import UNFINISHED
from sqlqueue.stats.open_work import FIGURES, open_work

OPTIONS = {"group": PEOPLE, "ordering": "none", "max_attempts": None}


class WorkItems(Effect):
    """HandOver makes a work item of a message."""

    exception = HandOver
    subject = "work items"
    figures = FIGURES

    def decide(self, error: HandOver) -> Any:
        """See Effect."""
        return work_items.hand_over(error)

    def settle(self, alias: str, lease: HeldLease, writes: Sequence[EffectWrite]) -> None:
        """See Effect."""
        work_items.write(alias, lease, writes)

    def sweep(self, alias: str) -> bool:
        """See Effect."""
        return work_collect.collect(alias) >= work_collect.MOST_AT_ONCE

    def survey(self, alias: str, topics: Sequence[str]) -> Mapping[str, Mapping[str, Count]]:
        """See Effect."""
        return open_work(alias, topics)

    def unsettled(self, alias: str, topic: str) -> Mapping[str, Count]:
        """See Effect."""
        return {"open_work_items": Count(_open_items(alias, topic).count())}

    def drop(self, alias: str, topic: str, most: int) -> int:
        """See Effect."""
        some = list(_open_items(alias, topic).values_list("pk", flat=True)[:most])
        WorkItem.objects.using(alias).filter(pk__in=some).only("pk").delete()  # with their events
        return len(some)


def _open_items(alias: str, topic: str) -> Any:
    """Return what people have not done of a topic, and of its dead letters. Index: (state, topic)."""
    names = [topic, topic + DEAD_LETTER_SUFFIX]
    return WorkItem.objects.using(alias).filter(state__in=UNFINISHED, topic__in=names)


WORK_ITEMS = WorkItems()


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
