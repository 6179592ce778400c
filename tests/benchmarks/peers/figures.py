"""The figures of a run: medians over its rounds, and percentiles of all its samples."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.peers.adapters import LABELS, SERVERS

OWN = "sqlqueue"  # the names of sqlqueue's own adapters begin with it


@dataclass(frozen=True)
class Measure:
    key: str
    title: str
    unit: str
    less_is_better: bool = False
    digits: int = 0
    chart: str = ""  # the chart that draws it


MEASURES = (
    Measure("enqueue", "one at a time", "messages/s", chart="enqueue"),
    Measure("enqueue in a transaction", "in a transaction with a row", "messages/s", chart="enqueue"),
    Measure("enqueue in bulk", "in bulk", "messages/s", chart="enqueue"),
    Measure("consume noop", "no-op", "messages/s", chart="consume"),
    Measure("consume sleep", "sleep of 5 ms", "messages/s", chart="consume"),
    Measure("consume write", "one ORM insert", "messages/s", chart="consume"),
    Measure("consume write-atomic", "the insert with the ack, atomic", "messages/s"),
    Measure("consume write-grouped", "the same, `commit_every=100`", "messages/s"),
    Measure("consume noop-batch", "no-op, batches of 500", "messages/s"),
    Measure("latency, idle p50", "idle, p50", "ms", True, 1, "latency"),
    Measure("latency, idle p99", "idle, p99", "ms", True, 1, "latency"),
    Measure("latency, half load p50", "half load, p50", "ms", True, 1, "latency"),
    Measure("latency, half load p99", "half load, p99", "ms", True, 1, "latency"),
    Measure("load", "half load is", "messages/s"),
    Measure("statements, enqueue", "to enqueue a message", "", True, 2, "statements"),
    Measure("statements, consume", "to consume a no-op message", "", True, 2, "statements"),
    Measure("statements, idle", "idle, a second", "/s", True, 1),
    Measure("memory", "the worker's processes", "MB", True, 0),
)
NOT_COMPARED = {"load", "consume write-atomic", "consume write-grouped", "consume noop-batch"}


def summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the median of each figure, and p50 and p99 of the samples of all rounds; None: it cannot be measured."""
    found: dict[str, float | None] = {}
    for key in dict.fromkeys(key for one in rounds for key in one):
        values = [one[key] for one in rounds if one.get(key) is not None]
        if values and isinstance(values[0], list):
            samples = [sample for value in values for sample in value]
            found |= {f"{key} p50": percentile(samples, 50), f"{key} p99": percentile(samples, 99)}
        else:
            found[key] = statistics.median(values) if values else None
    return found


def percentile(samples: Sequence[float], percent: int) -> float:
    """Return the smallest sample that is not exceeded by so many percent of them (the nearest-rank method)."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def label(name: str) -> str:
    return LABELS.get(name, name)


def shown(measure: Measure, value: float | None) -> str:
    return "–" if value is None else f"{value:,.{measure.digits}f}"


def ahead(measure: Measure, medians: Mapping[str, Mapping[str, float | None]]) -> tuple[str, list[str]] | None:
    """Return sqlqueue's best name, and the peers that are better in this measure, the best one first; None: nothing to
    compare."""
    values = {name: one[measure.key] for name, one in medians.items() if one.get(measure.key) is not None}
    if measure.key.startswith("statements"):  # a command on Redis is something else
        values = {name: value for name, value in values.items() if SERVERS.get(name) != "redis"}
    order = sorted(values, key=values.__getitem__, reverse=not measure.less_is_better)
    own = [name for name in order if name.startswith(OWN)]
    if not own or len(own) == len(order) or measure.key in NOT_COMPARED:
        return None
    least = shown(measure, values[own[0]])
    better = [name for name in order[: order.index(own[0])] if shown(measure, values[name]) != least]
    return own[0], better


def columns(keys: Iterable[str]) -> list[Measure]:
    return [measure for measure in MEASURES if measure.key.startswith(tuple(keys))]
