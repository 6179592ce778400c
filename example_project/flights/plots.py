"""Plots of the pipeline's results, as PNG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Row = dict[str, Any]
BUSIEST = 6
PALETTE = ("#2a6f97", "#c1440e", "#588157", "#7b2cbf", "#b08900", "#5c677d")


def plot_delays(rows: Iterable[Row], folder: Path) -> Path:
    """Plot the mean departure delay by scheduled hour, with a line for each of the busiest carriers."""
    carriers: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for row in rows:
        carriers[row["carrier"]][row["hour"]] = (row["total_delay"], row["departed"])
    sizes = {carrier: sum(departed for _, departed in hours.values()) for carrier, hours in carriers.items()}
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for color, carrier in zip(PALETTE, sorted(sizes, key=lambda carrier: -sizes[carrier])[:BUSIEST]):
        points = sorted((hour, total / count) for hour, (total, count) in carriers[carrier].items() if count >= 30)
        axes.plot(*zip(*points), label=f"{carrier} ({sizes[carrier]:,})", color=color, linewidth=1.8)
    axes.set(xlabel="scheduled hour of departure", ylabel="mean delay (minutes)", title="Delays by hour and carrier")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(title="carrier (departures)", fontsize=8)
    return _saved(figure, folder / "delays.png")


def plot_latency(rows: Iterable[Row], folder: Path) -> Path:
    """Plot, for each group, the share of messages that was settled within so many seconds of being published."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    groups: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for row in rows:
        groups[row["group"]].append((row["seconds"], row["messages"]))
    for color, (group, points) in zip(PALETTE, sorted(groups.items())):
        points.sort()
        total, passed, line = sum(count for _, count in points), 0, []
        for seconds, count in points:
            passed += count
            line.append((seconds, 100 * passed / total))
        axes.plot(*zip(*line), label=f"{group} ({total:,})", color=color, linewidth=1.8)
    axes.set(xlabel="seconds from publish to ack", ylabel="% of messages", title="End to end, a backlog worked off")
    axes.legend(title="group (acked)", fontsize=8)
    return _saved(figure, folder / "latency.png")


def plot_outcomes(rows: Iterable[Row], folder: Path) -> Path:
    """Plot how many of each group's deliveries ended in which way, other than acked."""
    totals: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for outcome in ("retried", "postponed", "dead"):
            totals[row["consumer_group"]][outcome] += row[outcome]
    figure, axes = plt.subplots(figsize=(8, 3.2))
    groups = sorted(totals)
    left = [0] * len(groups)
    for color, outcome in zip(PALETTE, ("retried", "postponed", "dead")):
        counts = [totals[group][outcome] for group in groups]
        axes.barh(groups, counts, left=left, label=outcome, color=color)
        left = [before + count for before, count in zip(left, counts)]
    axes.set(xlabel="deliveries", title="Deliveries that did not end with an ack")
    axes.legend(fontsize=8)
    return _saved(figure, folder / "outcomes.png")


def _saved(figure: Figure, file: Path) -> Path:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return file
