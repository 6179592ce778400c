"""Counts what a survey reads, within bounds: messages of ranges of offsets exactly up to one, beyond it by windows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple, TypeVar

from sqlqueue.database.log import Log

T = TypeVar("T")

SAMPLE = 200  # messages counted at the beginning of a backlog, or of a window over it
EXACT = 100_000  # messages that are counted of each group; beyond that a survey estimates
EXACT_OF_ALL = 1_000_000  # messages that are counted of all groups together: each has the same share
WINDOWS, LEAST_WINDOWS = 400, 20  # over all that is estimated, and over each of many groups
PARTS, ROUNDS = 4, 5  # into which a window of which too much was not seen is divided, and how often that is done
PROBED, MOST_PROBED = 2, 10  # times SAMPLE: how many messages a probe of the rest is to have, and may have
CLOSE = 0.05  # of what was seen: how much may be unseen
MOST_ROWS = 10_000  # to which delivery states and ranges of a group, dead letters of a topic, scheduled messages count
AT_ONCE = 240  # SELECTs in one statement; SQLite takes 500


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items, at most AT_ONCE of them at a time."""
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]


def each(log: Log, text: str, items: Mapping[T, Sequence[object]]) -> Iterator[tuple[T, Sequence[Any]]]:
    """Run a SELECT for each item, up to AT_ONCE of them in one statement; yield an item with each row.

    text: selects a number of its own first, which is not yielded. items: the other values of each item's SELECT.
    """
    branch = log.dialect.branch.format(text.strip())
    for some in chunks(list(items)):
        values = [value for number, item in enumerate(some) for value in (number, *items[item])]
        for number, *row in log.execute(" UNION ALL ".join([branch] * len(some)), values).fetchall():
            yield some[number], row


# Index of both: (topic, partition, priority, offset).
FIRST = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset") FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {ascending} LIMIT %s) AS some
"""
LAST = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset") FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {descending} LIMIT %s) AS some
"""


class Range(NamedTuple):
    """Offsets of one partition and priority: above `low`, up to `high`.

    part_of: ranges of a topic that say the same here (a consumer group's) are counted together.
    """

    topic: str
    partition: int
    priority: int
    low: int
    high: int
    part_of: str = ""

    @property
    def group(self) -> tuple[str, str]:
        """Return what is counted together."""
        return self.topic, self.part_of

    def divided(self, number: int) -> Iterator[Range]:
        """Yield so many parts of the same width, one after another; fewer if there are not so many offsets."""
        ends = [self.low + (self.high - self.low) * n // number for n in range(number + 1)]
        for low, high in pairwise(ends):
            if low < high:
                yield self._replace(low=low, high=high)


class Count(NamedTuple):
    """How many messages a range has, whether that is an estimate, and the first one's offset, 0 without any."""

    messages: int
    estimated: bool
    first: int


def count(log: Log, ranges: Sequence[Range]) -> list[Count]:
    """Return the count of each range: exact if all of its group have no more than EXACT messages together,
    beyond that an estimate.

    Reads at most, of each group, which no other one takes anything from, EXACT messages, or its share of EXACT_OF_ALL;
    and of one that is estimated LEAST_WINDOWS windows of SAMPLE messages (WINDOWS for all, if these are more) in each
    of ROUNDS, and as many probes. The number of statements grows by a few for every hundred ranges, and by 7 for each
    group that is estimated (25 for one alone, 13 for each of two or three).
    """
    messages, firsts = [0] * len(ranges), [0] * len(ranges)
    rest = {index: one for index, one in enumerate(ranges) if one.low < one.high}
    budgets = {one.group: EXACT for one in ranges}
    of_all = EXACT_OF_ALL
    # Each round gives every range of a group the same share, and the next one has what was left over. It asks for one
    # message more than the share: a range that has it is longer.
    while shares := _shares(rest, budgets, of_all):
        some = [rest[index] for index in shares]
        read = _read(log, FIRST, some, *(share + 1 for share in shares.values()))
        for (index, share), (found, first, upto) in zip(shares.items(), read):
            messages[index] += found
            firsts[index] = firsts[index] or first
            budgets[rest[index].group] -= min(found, share)
            of_all -= min(found, share)
            if found <= share:
                del rest[index]
            else:
                rest[index] = rest[index]._replace(low=upto)
    together: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, one in rest.items():
        together[one.group].append(index)
    windows = max(WINDOWS // max(1, len(together)), LEAST_WINDOWS)
    for indexes in together.values():
        for index, more in zip(indexes, _estimates(log, [rest[index] for index in indexes], windows)):
            messages[index] += more
    return [Count(found, index in rest, firsts[index]) for index, found in enumerate(messages)]


def _shares(rest: Mapping[int, Range], budgets: Mapping[tuple[str, str], int], of_all: int) -> dict[int, int]:
    """Return how many messages of each range are counted next, without those of groups whose budget is used up. of_all:
    how many may still be counted of all groups."""
    number = Counter(one.group for one in rest.values())
    each = of_all // max(1, len(number))
    shares = {index: min(budgets[one.group], each) // number[one.group] for index, one in rest.items()}
    return {index: share for index, share in shares.items() if share > 0}


class Unseen(NamedTuple):
    """Offsets of which nothing was read: about how many messages they have, and the index of their range."""

    messages: float
    of: int
    rest: Range


def _estimates(log: Log, ranges: Sequence[Range], number: int) -> list[int]:
    """Return about how many messages each range has. Its first messages speak for what follows them, so it is divided
    into windows, about so many of all; and those of which the most was not seen are divided again. What is unseen then
    is probed."""
    ends = _read(log, LAST, ranges, 1)
    each = max(number // len(ranges), 2)
    windows = [
        (index, window)
        for index, (one, (_, _, last)) in enumerate(zip(ranges, ends))
        for window in one._replace(high=max(one.low, last)).divided(each)
    ]
    totals = [0.0] * len(ranges)
    unseen: list[Unseen] = []
    for left in reversed(range(ROUNDS)):
        found = _read(log, FIRST, [window for _, window in windows], SAMPLE)
        for (index, window), (messages, _, upto) in zip(windows, found):
            totals[index] += messages
            if messages == SAMPLE and upto < window.high:
                more = messages / (upto - window.low) * (window.high - upto)
                unseen.append(Unseen(more, index, window._replace(low=upto)))
        if not left or sum(one.messages for one in unseen) <= CLOSE * sum(totals):
            break
        unseen.sort(reverse=True)
        most = number // PARTS
        windows = [(one.of, part) for one in unseen[:most] for part in one.rest.divided(PARTS)]
        del unseen[:most]
    for index, more in _probed(log, unseen, number):
        totals[index] += more
    return [round(total) for total in totals]


def _probed(log: Log, unseen: Sequence[Unseen], number: int) -> Iterator[tuple[int, float]]:
    """Yield the index of a range and about how many of its messages were not seen, by parts.

    What was expected of them is biased: where messages come in bulks, the first ones of a window end in the middle of
    one. So it only says where to look: more of so many probes are where more is expected. A probe is of so many
    offsets, and may overlap the ends of what is unseen: each offset is as likely to be in one."""
    each = sum(one.messages for one in unseen) / number  # messages expected for each probe
    random, past = Random(0), 0.0
    expected: list[float] = []
    probes: list[tuple[int, Range]] = []
    at = random.random() * each
    for messages, index, rest in unseen:
        span, past = rest.high - rest.low, past + messages
        width = max(1, min(span, round(span * PROBED * SAMPLE / messages)))
        while at < past:
            first = rest.low - width + random.randrange(span + width)
            probes.append((index, rest._replace(low=max(rest.low, first), high=min(rest.high, first + width))))
            expected.append(messages * width / (span + width))
            at += each
    most = MOST_PROBED * SAMPLE
    found = _read(log, FIRST, [part for _, part in probes], most)
    for (index, _), (messages, _, _), wanted in zip(probes, found, expected):
        yield index, each * messages / wanted


def _read(log: Log, text: str, ranges: Sequence[Range], *most: int) -> list[tuple[int, int, int]]:
    """Return how many messages each range has, up to so many (of each, or of all), and the first and the last offset of
    those, 0 without any."""
    bounds = log.dialect.range_values
    items = {index: (*bounds(*one[:5]), most[index % len(most)]) for index, one in enumerate(ranges)}
    found = {index: tuple(int(value or 0) for value in row) for index, row in each(log, text, items)}
    return [found.get(index, (0, 0, 0)) for index in items]  # type: ignore[misc]
