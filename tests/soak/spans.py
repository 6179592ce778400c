"""Spans of time in which nothing happens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence


def pauses(line: Sequence[float], since: float, until: float, bound: float) -> Iterable[tuple[float, float]]:
    """Yield the spans longer than the bound, of the time between two moments, in which nothing of a line began."""
    at = since
    while until - at > bound:
        near = bisect_right(line, at + bound)
        if near and line[near - 1] > at:
            at = line[near - 1]
            continue
        end = min(until, line[near] if near < len(line) else until)
        yield at, end
        at = end


def longest_gap(low: float, high: float, spans: Iterable[tuple[float, float]]) -> float:
    """Return the longest part of a span of time that lies outside of others."""
    longest, free_since = 0.0, low
    for began, ended in sorted(spans):
        if began >= high:
            break
        longest = max(longest, began - free_since)
        free_since = max(free_since, ended)
    return max(longest, high - free_since)
