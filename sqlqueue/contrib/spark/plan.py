"""The plan of a read, made beside the driver: where rows are, and which task reads which of them. A range of offsets is
divided by the number of rows, whatever the gaps between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.scan import Condition, Portion, between, one_of, where
from sqlqueue.contrib.spark.tables import DEAD_LETTERS, MESSAGES, RECEIPTS, RECEIPTS_BY_ID, Table
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, Epoch, numbers_of
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity, select
from sqlqueue.log import layouts

LEAST_ROWS = 5_000  # of a task: to start one takes as long as to read so many
MOST_INDEX_RANGES = 2_000  # of the log's index that a condition lists
# Is there a row? Index: the log's (topic, partition, priority, offset).
ANY = "SELECT 1 FROM sqlqueue_message{by_stream} WHERE {where} LIMIT 1"
NOTHING = Condition("1 = 0", ())

TOPICS = "SELECT name, partitions, priorities FROM sqlqueue_topic"
LOWEST = 'SELECT MIN("offset") FROM sqlqueue_message'  # index: the primary key's end
RECEIPTS_ENDS = "SELECT MIN(id), MAX(id) FROM sqlqueue_receipt"  # index: the primary key's ends
# How many rows are in each bucket? Reads only the index: the log's (topic, partition, priority, offset), or that of the
# receipts (message_offset, consumer_group).
COUNT = "SELECT ({column} - %s) {div} %s AS bucket, COUNT(*) FROM {stored}{index} WHERE {where} GROUP BY bucket"

ROWS_OF_ONE_QUERY = 50_000
ROWS_WORTH_PARTING = 500
BUCKETS = 1_024

# Counts the rows of [low, high] by (offset - low) // width.
Count = Callable[[int, int, int], Mapping[int, int]]


def index_conditions(log: Log, options: SourceOptions, server: ServerIdentity) -> list[Condition]:
    """Return conditions on topic, partition and priority, the first columns of the log's index (topic, partition,
    priority, offset), which hold for all rows that the options ask for."""
    rows = select(log, TOPICS, (), server, 3, 1)
    known = {name: (partitions, priorities) for name, partitions, priorities in rows}
    ending = DEAD_LETTER_SUFFIX if options.table is DEAD_LETTERS else ""
    named = {topic + ending for topic in options.topics}
    names = {name for name in known if name in named or (not named and name.endswith(ending))}
    if not names:
        return [NOTHING]
    altered = layouts.altered(log)
    epochs = [
        epoch
        for name in names
        for epoch in (layouts.epochs(log, name) if name in altered else (Epoch(0, 0, known[name][0]),))
    ]
    partitions: Sequence[int] = sorted(set(numbers_of(epochs)))
    if options.keys and options.table is MESSAGES:
        partitions = sorted({epoch.partition_of(key) for key in options.keys for epoch in epochs})
    if options.partitions:
        partitions = [partition for partition in partitions if partition in options.partitions]
    priorities = range(max(known[name][1] for name in names))
    if not partitions:
        return [NOTHING]
    found = [one_of("topic", sorted(names))]
    if options.partitions or len(names) * len(partitions) * len(priorities) <= MOST_INDEX_RANGES:
        found += [one_of('"partition"', partitions), one_of("priority", priorities)]
    return found


def counter(table: Table, conditions: Sequence[Condition], server: ServerIdentity) -> Count:
    """Return a function that counts the rows of a table by buckets of offsets. What it does not count is not read: so
    `server` is the only one whose answers count."""

    def count(low: int, high: int, width: int) -> dict[int, int]:
        text, values = where([*conditions, between(table, low, high)])
        text = COUNT.replace("{where}", text).replace("{column}", table.offset_column)
        text = text.replace("{stored}", table.stored).replace("{index}", table.partition_index)
        return {int(bucket): rows for bucket, rows in select(server.log, text, (low, width, *values), server, 2, 0)}

    return count


def batch(
    log: Log,
    options: SourceOptions,
    tasks: int,
    server: ServerIdentity,
    known_horizon: Callable[[Log], int] | None = None,
) -> list[Portion]:
    """Plan a batch read up to the present horizon, for at most `tasks` tasks. server: the only one whose answer counts;
    known_horizon: tells that of an alias whose server cannot be probed, a replica.

    Raises HorizonUnknown, and LeaseLost for another server.
    """
    table = options.table
    server.make_sure()  # before the look at the horizon
    if not table.offset_column:
        return [Portion(restrictions(log, options), [(0, 0, "")], server.identity)]
    if table == RECEIPTS_BY_ID:
        lowest, high = log.execute(RECEIPTS_ENDS).fetchone()
    else:
        high = known_horizon(log) if known_horizon else Horizon(log, server).wait(options.horizon_timeout)
        lowest = None if table is RECEIPTS else log.execute(LOWEST).fetchone()[0]
    high = high or 0
    high = high if options.high is None else min(high, options.high)
    return portions(log, options, max(lowest or 1, options.low), high, tasks, server)


def portions(
    log: Log, options: SourceOptions, low: int, high: int, tasks: int, server: ServerIdentity
) -> list[Portion]:
    """Divide the rows with offsets from `low` to `high` among at most `tasks` tasks, by counts from an index alone.

    server: the only one whose counts are used; raises LeaseLost for another one.
    """
    table = options.table
    leading = index_conditions(log, options, server) if table.in_log else []
    ranges = list(measure(counter(table, leading, server), low, high, tasks))
    parts = max(1, min(tasks, -(-sum(found.rows for found in ranges) // LEAST_ROWS)))
    conditions = [*leading, *restrictions(log, options)]
    return [
        Portion(conditions, [(found.low, found.high, _index(table, found)) for found in some], server.identity)
        for some in share(ranges, parts) or [[]]
    ]


def next_end(
    log: Log, options: SourceOptions, done: int, highest: int, rows: int | None, server: ServerIdentity
) -> int:
    """Return the offset at which a Spark stream's next batch ends: `done` if there is no row up to `highest`, else at
    most `highest`, and after about `rows` rows."""
    if highest <= done:
        return done
    leading = index_conditions(log, options, server)
    text, values = where([*leading, between(options.table, done + 1, highest)])
    if log.execute(ANY.replace("{where}", text), values).fetchone() is None:
        return done
    return highest if rows is None else end_of(counter(options.table, leading, server), done + 1, highest, rows)


def holds_any(log: Log, options: SourceOptions, low: int, high: int, server: ServerIdentity) -> bool:
    """Tell whether there is a row of the options with an offset from `low` to `high`. Raises LeaseLost for another
    server."""
    leading = index_conditions(log, options, server)
    text, values = where([*leading, *restrictions(log, options), between(options.table, low, high)])
    limited = log.dialect.branch.format(ANY.replace("{where}", text))
    return bool(select(log, limited, values, server, 1, 0))


def restrictions(log: Log, options: SourceOptions) -> list[Condition]:
    """Return the conditions of the options, except those on offsets and those of index_conditions()."""
    table = options.table
    found = [Condition(table.condition, ())] if table.condition else []
    if not table.in_log:
        if options.topics:
            found.append(one_of("topic", options.topics))
        if options.partitions:
            found.append(one_of('"partition"', options.partitions))
    if options.group:
        found.append(one_of("target_group", ("", options.group)))
    if options.keys:
        found.append(one_of(table.chosen(["key"])[0].stored, options.keys))
    written = log.dialect.microseconds(table.chosen([table.time])[0].stored)
    bounds = ((">=", options.since), ("<", options.until))
    return found + [Condition(f"{written} {sign} %s", (at,)) for sign, at in bounds if at is not None]


def _index(table: Table, found: CountedRange) -> str:
    """Return the index to read a range with: by offset alone if at least half of the rows there are wanted, since a row
    that is found by topic and partition takes twice as long."""
    return table.offset_index if 2 * found.rows > found.high - found.low else table.partition_index


# -- division ---------------------------------------------------------------------------------------------------------


class CountedRange(NamedTuple):
    """Offsets from `low` to `high`, both included, and how many rows have them."""

    low: int
    high: int
    rows: int


def measure(count: Count, low: int, high: int, tasks: int = 1, most: int | None = None) -> Iterator[CountedRange]:
    """Yield the ascending ranges that hold the rows with offsets from `low` to `high`, each with at most `most` rows
    (default: an eighth of a task's share).

    It counts once if the rows are spread somewhat evenly, and once more for each bucket that holds too many.
    """
    if high < low:
        return
    span = high - low + 1
    width = -(-span // max(BUCKETS, min(span // ROWS_OF_ONE_QUERY, 100_000)))
    buckets = count(low, high, width)
    if most is None:
        most = min(ROWS_OF_ONE_QUERY, max(ROWS_WORTH_PARTING, sum(buckets.values()) // (8 * tasks)))
    for bucket, rows in sorted(buckets.items()):
        first = low + bucket * width
        last = min(high, first + width - 1)
        if rows > most and width > 1:
            yield from measure(count, first, last, tasks, most)
        elif rows:
            yield CountedRange(first, last, rows)


def share(ranges: Sequence[CountedRange], parts: int, most: int = ROWS_OF_ONE_QUERY) -> list[list[CountedRange]]:
    """Divide ranges among at most `parts` tasks, in order, with about the same number of rows for each.

    Successive ranges of a task are joined, whatever the gap between them, up to `most` rows.
    """
    total = sum(found.rows for found in ranges)
    shares: list[list[CountedRange]] = [[]]
    given = 0
    for found in ranges:
        if shares[-1] and given + found.rows / 2 > total * len(shares) / parts:
            shares.append([])
        given += found.rows
        before = shares[-1][-1] if shares[-1] else None
        if before and before.rows + found.rows <= most:
            shares[-1][-1] = CountedRange(before.low, found.high, before.rows + found.rows)
        else:
            shares[-1].append(found)
    return [some for some in shares if some]


def end_of(count: Count, low: int, high: int, rows: int) -> int:
    """Return an offset such that about `rows` rows, not more but at least one, lie from `low` up to it; `high` if there
    are fewer. It counts no further than that."""
    span = max(rows, 1)
    while True:
        last, taken = min(high, low + span - 1), 0
        for found in measure(count, low, last, most=max(1, rows // 8)):
            if taken + found.rows > rows:
                return found.low - 1
            taken += found.rows
        if last == high or taken == rows:
            return last
        span *= 4
