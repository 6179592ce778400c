"""Planning a read beside the driver: which rows there are, and who reads which of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, partition_of
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.horizon import Horizon
from sqlqueue.spark.options import Options
from sqlqueue.spark.ranges import Count, Range, end_of, measure, share
from sqlqueue.spark.scan import Condition, Portion, between, one_of, where
from sqlqueue.spark.tables import DEAD_LETTERS, MESSAGES, RECEIPTS, RECEIPTS_BY_ID, Table

LEAST_ROWS = 5_000  # of a task: starting one costs about as much as reading these
MOST_STREAMS = 2_000  # that a condition lists: an index range for each
# Is anything there? Index: the log's (topic, partition, priority, offset).
ANY = "SELECT 1 FROM sqlqueue_message{by_stream} WHERE {where} LIMIT 1"
NOTHING = Condition("1 = 0", ())

TOPICS = "SELECT name, partitions, priorities FROM sqlqueue_topic"
LOWEST = 'SELECT MIN("offset") FROM sqlqueue_message'  # index: the primary key's end
RECEIPTS_ENDS = "SELECT MIN(id), MAX(id) FROM sqlqueue_receipt"  # index: the primary key's ends
# How many rows are where? Only the index is read: the log's (topic, partition, priority, offset), or the receipts'
# (message_offset, consumer_group).
COUNT = "SELECT ({place} - %s) {div} %s AS bucket, COUNT(*) FROM {stored}{index} WHERE {where} GROUP BY bucket"


def reached(alias: str, patience: float) -> int:
    """Return the horizon of now. HorizonUnknown: a transaction that publishes stayed open for so many seconds."""
    deadline = time.monotonic() + patience
    return Horizon(alias).wait(lambda: time.monotonic() > deadline)


def lowest(alias: str) -> int:
    """Return the lowest offset in the log; 1 if it is empty."""
    return execute(alias, LOWEST).fetchone()[0] or 1


def receipts_ends(alias: str) -> tuple[int, int]:
    """Return the lowest and the highest id of a receipt; (1, 0) if there is none."""
    low, high = execute(alias, RECEIPTS_ENDS).fetchone()
    return low or 1, high or 0


def streams(alias: str, options: Options) -> list[Condition]:
    """Return which topics, partitions and priorities the rows can be in: the conditions that lead the log's index
    (topic, partition, priority, offset)."""
    known = {name: (partitions, priorities) for name, partitions, priorities in execute(alias, TOPICS).fetchall()}
    names = set(known)
    if options.table is DEAD_LETTERS:
        names = {name for name in known if name.endswith(DEAD_LETTER_SUFFIX)}
    if options.topics:
        ending = DEAD_LETTER_SUFFIX if options.table is DEAD_LETTERS else ""
        names = {topic + ending for topic in options.topics} & names
    if not names:
        return [NOTHING]
    partitions: Sequence[int] = range(max(known[name][0] for name in names))
    if options.keys and options.table is MESSAGES:
        partitions = sorted({partition_of(key, known[name][0]) for key in options.keys for name in names})
    if options.numbers:
        partitions = [partition for partition in partitions if partition in options.numbers]
    priorities = range(max(known[name][1] for name in names))
    if not partitions:
        return [NOTHING]
    found = [one_of("topic", sorted(names))]
    if options.numbers or len(names) * len(partitions) * len(priorities) <= MOST_STREAMS:
        found += [one_of('"partition"', partitions), one_of("priority", priorities)]
    return found


def counter(alias: str, table: Table, conditions: Sequence[Condition]) -> Count:
    """Return what counts the rows of a table by buckets of offsets."""

    def count(low: int, high: int, width: int) -> dict[int, int]:
        text, values = where([*conditions, between(table, low, high)])
        text = COUNT.replace("{where}", text).replace("{place}", table.place).replace("{stored}", table.stored)
        text = text.replace("{index}", table.by_stream)
        return {int(bucket): rows for bucket, rows in execute(alias, text, (low, width, *values)).fetchall()}

    return count


def batch(alias: str, options: Options, tasks: int) -> list[Portion]:
    """Plan a batch read up to the horizon of now."""
    table = options.table
    if not table.place:
        return [Portion(restrictions(alias, options), [(0, 0, "")])]
    if table == RECEIPTS_BY_ID:
        low, high = receipts_ends(alias)
        high = high if options.high is None else min(high, options.high)
        return portions(alias, options, max(low, options.low), high, tasks)
    high = reached(alias, options.patience)
    high = high if options.high is None else min(high, options.high)
    low = options.low if table is RECEIPTS else max(options.low, lowest(alias))
    return portions(alias, options, low, high, tasks)


def portions(alias: str, options: Options, low: int, high: int, tasks: int) -> list[Portion]:
    """Divide the rows of [low, high] among at most `tasks` tasks, by what can be counted in an index alone."""
    table = options.table
    leading = streams(alias, options) if table.in_log else []
    ranges = measure(counter(alias, table, leading), low, high, tasks)
    parts = max(1, min(tasks, -(-sum(found.rows for found in ranges) // LEAST_ROWS)))
    conditions = [*leading, *restrictions(alias, options)]
    return [
        Portion(conditions, [(found.low, found.high, _index(table, found)) for found in some])
        for some in share(ranges, parts) or [[]]
    ]


def next_end(alias: str, options: Options, done: int, highest: int, rows: int | None) -> int:
    """Return where a stream's next batch ends, at most `highest`: `done` if nothing is there, and about `rows` rows on
    if there are more."""
    if highest <= done:
        return done
    leading = streams(alias, options)
    text, values = where([*leading, between(options.table, done + 1, highest)])
    if execute(alias, ANY.replace("{where}", text), values).fetchone() is None:
        return done
    return highest if rows is None else end_of(counter(alias, options.table, leading), done + 1, highest, rows)


def restrictions(alias: str, options: Options) -> list[Condition]:
    """Return what the options say of the rows, besides their offsets and what streams() says."""
    table = options.table
    found = [Condition(table.condition, ())] if table.condition else []
    if not table.in_log:
        if options.topics:
            found.append(one_of("topic", options.topics))
        if options.numbers:
            found.append(one_of('"partition"', options.numbers))
    if options.group:
        found.append(one_of("target_group", ("", options.group)))
    if options.keys:
        found.append(one_of(table.chosen(["key"])[0].stored, options.keys))
    written = dialect(alias).microseconds(table.chosen([table.time])[0].stored)
    bounds = ((">=", options.since), ("<", options.until))
    return found + [Condition(f"{written} {sign} %s", (at,)) for sign, at in bounds if at is not None]


def _index(table: Table, found: Range) -> str:
    """By place if at least half of what is there is wanted: a row that is found by its stream costs twice as much."""
    return table.by_place if 2 * found.rows > found.high - found.low else table.by_stream
