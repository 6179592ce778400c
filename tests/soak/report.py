"""The report of a run, as text and, for adding runs up, as JSON."""

import json
import statistics
from bisect import bisect_right
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.soak import epochs, job_checks, workload
from tests.soak.checker import VIOLATIONS
from tests.soak.explanations import LATE
from tests.soak.records import Record
from tests.soak.soak import Result
from tests.soak.topologies import choice
from tests.soak.watch import Sample

KILLS = {"kill-consumer", "kill-publisher", "kill-supervisor"}
SERVER_DEATHS = {"kill-server", "restart-server"}


def figures(result: Result) -> dict[str, Any]:
    """Return the figures of a run."""
    record, checker = result.record, result.checker
    deaths = sum(fault.kind == "handler-dies" for fault in record.faults)
    return {
        "database": result.plan.place,
        "seed": result.plan.seed,
        "seconds": round(result.seconds),
        "messages committed": record.messages,
        "messages taken back or in doubt": sum(len(t.messages) for t in record.transactions) - record.messages,
        "deliveries": len(record.handlings),
        "acks confirmed": checker.figures["acks confirmed"],
        "messages collected": record.collected,
        "dead letters": checker.figures["dead letters"],
        "alterations": dict(result.alterations),
        **epochs.figures(record),
        **job_checks.figures(record),
        "duplicates": checker.figures["duplicates"],
        "duplicates explained by": dict(checker.duplicates.most_common()),
        LATE: checker.figures[LATE],
        "deliveries by ordering": dict(checker.deliveries),
        "out of order by ordering": checker.disorder,
        "faults": dict(sorted(result.done.items())) | {"handler-dies": deaths},
        "kill -9": sum(result.done.get(kind, 0) for kind in KILLS) + deaths + result.done.get("kill-server", 0),
        "server deaths": sum(result.done.get(kind, 0) for kind in SERVER_DEATHS),
        "drained after (s)": result.drained_after and round(result.drained_after, 1),
        "deliveries left at the last fault": result.backlog,
        "longest unexplained standstill (s)": round(result.standstill, 1),
        "how many times slower than a usual machine of its own": round(record.crowded, 1),
        "longest unexplained wait beside long handlers (s)": round(checker.starving.longest(), 1),
        "connections left": result.clients_left,
        "phases": phase_notes(result),
        "not done": sorted(result.impossible),
        **memory(result.samples),
        **failover_figures(result),
        "violations": checker.violations,
        "troubles": result.troubles,
    }


def failover_figures(result: Result) -> dict[str, Any]:
    """Tell what a topology's faults cost: what the database forgot, and how long no handler began."""
    topology = choice.TOPOLOGIES.get(result.plan.topology)
    if topology is None:
        return {}
    kinds = {kind.name for kind in topology.kinds}
    return {
        "forgotten by the database: messages that it had confirmed": len(result.losses.messages),
        "forgotten by the database: messages in doubt": len(result.losses.unconfirmed),
        "forgotten by the database: acks that it had confirmed": len(result.losses.acks),
        "longest until a handler began, by fault (s)": longest_pauses(result.record, kinds),
    }


def longest_pauses(record: Record, kinds: set[str]) -> dict[str, float]:
    """Return, by the kind of a fault, the longest time in which no handler began, from its beginning up to the first
    handler after its end."""
    moments = [handling.began for handling in record.handlings]
    longest: dict[str, float] = {}
    for fault in record.faults:
        if fault.kind in kinds:
            first, last = bisect_right(moments, fault.began), bisect_right(moments, fault.ended)
            pauses = [high - low for low, high in pairwise([fault.began, *moments[first : last + 1]])]
            longest[fault.kind] = round(max(longest.get(fault.kind, 0.0), *pauses, 0.0), 1)
    return longest


def phase_notes(result: Result) -> dict[str, str]:
    """Tell of each phase what it published, how long that waited for its first handler, and when all of it was done."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for handling in result.record.handlings:  # in the order in which they began
        first.setdefault(handling.id, handling.began)
        last[handling.id] = handling.until
    notes = {}
    for phase in result.record.phases:
        name = f"{phase.kind}{phase.number}"
        own = [t for t in result.record.transactions if t.messages and t.messages[0][2].startswith(f"{name}/")]
        told = {id: each.told for each in own for _, _, id in each.messages if each.told is not None}
        wait = max((first[id] - at for id, at in told.items() if id in first), default=0.0)
        later = max((last[id] for id in told if id in last), default=0.0) - phase.ended
        notes[name] = f"{phase.ended - phase.began:.1f} s"
        if told:
            notes[name] += f", {len(told)} messages, begun after {wait:.1f} s, done {max(0.0, later):.1f} s later"
    return notes


def memory(samples: list[Sample]) -> dict[str, Any]:
    """Compare the witness's second fifth with its last: by then it has seen everything once."""
    if len(samples) < 10:
        return {}
    fifth = len(samples) // 5
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]
    return {
        f"witness: {what}, early and late": [
            round(statistics.median(getattr(sample, name) for sample in part) / scale) for part in (early, late)
        ]
        for what, name, scale in (("MB", "memory", 1e6), ("threads", "threads", 1), ("files", "files", 1))
    } | {"connections of all processes, at most": max(sample.clients for sample in samples)}


def show(result: Result, console: Console) -> None:
    """Print a run's figures, and, if it failed, how to repeat it."""
    table = Table(title=f"{result.plan.seconds:g} s under fire on {result.plan.place}, seed {result.plan.seed}")
    table.add_column("what")
    table.add_column("figure", justify="right")
    for name, value in figures(result).items():
        if name in ("violations", "troubles"):
            continue
        if name == "phases":
            value = "\n".join(f"{phase}: {note}" for phase, note in value.items())
        if isinstance(value, dict):
            value = ", ".join(f"{key} {count}" for key, count in value.items())
        elif isinstance(value, list):
            value = " → ".join(str(each) for each in value)
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    table.add_section()
    for name, count in result.checker.violations.items():
        table.add_row(f"[bold]{name}[/bold]: {VIOLATIONS[name]}", f"[{'red' if count else 'green'}]{count}[/]")
    console.print(table)
    for kind, why in result.impossible.items():
        console.print(f"Not done: {kind}, for {why}.", style="yellow", markup=False)
    for problem in [*result.troubles, *result.checker.problems]:
        console.print(problem, style="red", markup=False)


def save(result: Result) -> None:
    """Keep the figures beside the history."""
    text = json.dumps(figures(result) | {"lease": workload.LEASE_DURATION}, indent=1)
    (result.folder / "report.json").write_text(text + "\n")
