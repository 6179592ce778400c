"""Counts what people have not done of each topic."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.statements import dialect, execute
from sqlqueue.models.work_item import UNFINISHED
from sqlqueue.stats import sampling

# Index: (state, topic); (state, due_at).
OPEN = """
    SELECT 0, topic, COUNT(*) FROM (SELECT topic FROM sqlqueue_work_item WHERE state = %s LIMIT %s)
    AS open_items GROUP BY topic
"""
OVERDUE = """
    SELECT 1, topic, COUNT(*) FROM (SELECT topic FROM sqlqueue_work_item WHERE state = %s AND due_at <= {now}
    ORDER BY due_at LIMIT %s) AS late_items GROUP BY topic
"""


class OpenWork(NamedTuple):
    """How many work items are open, and how many of these are overdue, by topic, a topic's dead letters' ones with its
    own; more: the counting ended at its bound, so that all counts are the least there may be."""

    items: Counter[str]
    overdue: Counter[str]
    more: bool


NO_WORK = OpenWork(Counter(), Counter(), False)


def open_work(alias: str) -> OpenWork:
    """Count up to sampling.MOST_ROWS items of each state, and as many that are overdue. One statement."""
    branch = dialect(alias).branch
    selects = [branch.format(text.strip()) for text in (OPEN, OVERDUE) for _ in UNFINISHED]
    values = [value for state in (*UNFINISHED, *UNFINISHED) for value in (state, sampling.MOST_ROWS)]
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for late, topic, count in execute(alias, " UNION ALL ".join(selects), values).fetchall():
        counts[late][topic.removesuffix(DEAD_LETTER_SUFFIX)] += count
    return OpenWork(*counts, any(each.total() >= sampling.MOST_ROWS for each in counts))
