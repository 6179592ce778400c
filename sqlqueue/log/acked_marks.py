"""Acked marks: since when every group has settled a stream up to an offset, for `retention_from="acked"`.

Each collection that finds the lowest watermark further on marks it, at most MARKS times within the retention. So
nothing is released before its time, and everything by a hundredth of the retention later, and the next collection.
"""

from __future__ import annotations

from sqlqueue.conf import settings
from sqlqueue.core.settings import ACKED
from sqlqueue.database.log import Log
from sqlqueue.models import AckedMark, Topic

MARKS = 100
# Index: (topic, partition, priority, offset_acked); at most MARKS rows and a few.
READ = """
    SELECT offset_acked, marked_at <= {earlier}, marked_at <= {earlier} FROM sqlqueue_acked_mark
    WHERE topic = %s AND "partition" = %s AND priority = %s ORDER BY offset_acked
"""


def applies(topic: Topic) -> bool:
    """Tell whether a topic's retention counts from the acks."""
    return topic.retention is not None and settings.topic(topic.name).retention_from == ACKED


def released_to(log: Log, topic: str, partition: int, priority: int, acked: int, retention: float) -> int:
    """Return up to which offset every group had settled a stream `retention` seconds ago, 0 for unknown, and mark that
    now it is `acked`. In the transaction of a collection, which has locked the topic.

    Marks above that offset are forgotten: watermarks have been lowered by what does not call forget_above.
    """
    if retention <= 0:
        return acked
    stream = {"topic": topic, "partition": partition, "priority": priority}
    ages = round(retention * 1_000_000), round(retention / MARKS * 1_000_000)
    found = log.execute(READ, (*ages, topic, partition, priority)).fetchall()
    marks = [row for row in found if row[0] <= acked]
    old = [offset for offset, old_enough, _ in marks if old_enough]
    rows = AckedMark.objects.using(log.alias).filter(**stream)
    if len(marks) < len(found):
        rows.filter(offset_acked__gt=acked).delete()
    if len(old) > 1:
        rows.filter(offset_acked__lt=old[-1]).delete()
    last, _, apart = marks[-1] if marks else (0, True, True)
    if acked > last and apart:
        AckedMark.objects.using(log.alias).create(**stream, offset_acked=acked)
    return old[-1] if old else 0


def forget_above(log: Log, topic: str, offset: int) -> None:
    """Forget, in a transaction that has locked the topic, what was marked above an offset: a group will read it again,
    or for the first time. Whatever the settings of this process are: they may not name the topic."""
    AckedMark.objects.using(log.alias).filter(topic=topic, offset_acked__gt=offset).delete()
