"""The layouts of topics: their epochs, as this database's tables have them."""

from __future__ import annotations

from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from sqlqueue.core.epochs import Epoch, numbers_of
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import Layout, Topic

# The epochs of a topic: those of its layouts, else the one of its own row. Index: the topics' primary key; the layouts'
# unique key.
EPOCHS = """
    SELECT 0, 0, t.partitions, NULL, NULL FROM sqlqueue_topic t WHERE t.name = %s
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_layout l WHERE l.topic = t.name)
    UNION SELECT l.epoch, l.base, l.partitions, l."end", l.retired_at FROM sqlqueue_layout l WHERE l.topic = %s
"""


def epochs(log: Log, topic: str, *, retired: bool = False) -> tuple[Epoch, ...]:
    """Return the epochs of a topic that are not retired, oldest first: the last one is open, or about to be. retired:
    also those that are. Raises ConfigurationError if there is no such topic."""
    rows = sorted(log.execute(EPOCHS, (topic, topic)).fetchall(), key=lambda row: row[0])
    if not rows:
        raise ConfigurationError(f"there is no topic {topic!r}")
    return tuple(
        Epoch(number, base, partitions, end)
        for number, base, partitions, end, retired_at in rows
        if retired or retired_at is None
    )


def numbers(log: Log, topic: str) -> list[int]:
    """Return the numbers of the partitions in which the topic can have messages: of all epochs that are not retired.
    Raises ConfigurationError if there is no such topic."""
    return numbers_of(epochs(log, topic))


def altered(log: Log) -> set[str]:
    """Return the topics that have had several epochs."""
    return set(Layout.objects.using(log.alias).filter(base__gt=0).values_list("topic", flat=True).distinct())


def with_present(topics: QuerySet[Topic]) -> QuerySet[Topic]:
    """Let topics have `present_partitions`: how many there are for new messages. The row's own are the first epoch's.
    Index: the layouts' unique key."""
    layouts = Layout.objects.filter(topic=OuterRef("name")).order_by("-generation")
    return topics.annotate(present_partitions=Coalesce(Subquery(layouts.values("partitions")[:1]), "partitions"))
