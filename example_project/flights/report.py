"""The report of the flights' consumption."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count, Max, Sum
from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from example_project.flights.check import Check
from example_project.flights.comparison import Comparison
from example_project.flights.dead_letters import DeadLetter
from example_project.flights.models import DelayStatistic
from example_project.flights.rules import GROUPS, TOPIC
from sqlqueue.models import Receipt

SHOWN_CARRIERS = 8
SHOWN_DIFFERENCES = 3


@dataclass(frozen=True, slots=True)
class Timings:
    """published: flights; publishing, consuming: seconds, the start of the consumer processes included."""

    published: int
    publishing: float
    consuming: float


def print_report(console: Console, check: Check, timings: Timings | None = None) -> None:
    """Print totals, rates, delays, dead letters, and one verdict line for each promise."""
    for part in report(check, timings):
        console.print(part, soft_wrap=isinstance(part, Text))


def report(check: Check, timings: Timings | None = None) -> Iterator[RenderableType]:
    """Yield the report's parts."""
    yield groups_table(check)
    if timings:
        yield from _rates(check, timings)
    yield carriers_table()
    if check.dead_letters:
        yield dead_letters_table(check.dead_letters)
    for comparison in check.comparisons:
        yield verdict(comparison)
        if not comparison.holds:
            yield differences_table(comparison)


def groups_table(check: Check) -> Table:
    """Return each group's totals."""
    dead_letters = Counter(dead_letter.group for dead_letter in check.dead_letters)
    receipts = dict(
        Receipt.objects.filter(topic=TOPIC).values_list("consumer_group").annotate(count=Count("pk")).order_by()
    )
    table = _table("Groups", "group", ">settled", ">of", ">dead letters", ">receipts")
    for group in GROUPS:
        table.add_row(
            group,
            f"{check.settled.get(group, 0):,}",
            f"{check.flights:,}",
            f"{dead_letters[group]:,}",
            f"{receipts.get(group, 0):,}",
        )
    return table


def carriers_table() -> Table:
    """Return the departures of the carriers with the most flights."""
    carriers = DelayStatistic.objects.values("carrier").annotate(
        all_flights=Sum("flights"),
        all_departed=Sum("departed"),
        all_cancelled=Sum("cancelled"),
        minutes=Sum("total_delay"),
        longest=Max("max_delay"),
    )
    table = _table(
        "Busiest carriers", "carrier", ">flights", ">departed", ">cancelled", ">mean delay (min)", ">longest (min)"
    )
    for row in carriers.order_by("-all_flights", "carrier")[:SHOWN_CARRIERS]:
        mean = f"{row['minutes'] / row['all_departed']:.1f}" if row["all_departed"] else "–"
        counts = (f"{row[name]:,}" for name in ("all_flights", "all_departed", "all_cancelled"))
        longest = "–" if row["longest"] is None else f"{row['longest']:,}"
        table.add_row(row["carrier"], *counts, mean, longest)
    return table


def dead_letters_table(dead_letters: list[DeadLetter]) -> Table:
    """Return the dead letters by group and reason, with an example of each."""
    kinds: dict[tuple[str, str], list[DeadLetter]] = defaultdict(list)
    for dead_letter in dead_letters:
        kinds[dead_letter.group, dead_letter.reason].append(dead_letter)
    table = _table("Dead letters", "group", "reason", ">flights", ">attempts", "for example")
    for (group, reason), some in kinds.items():
        attempts = sorted({dead_letter.attempts for dead_letter in some})
        span = str(attempts[0]) if len(attempts) == 1 else f"{attempts[0]}–{attempts[-1]}"
        table.add_row(group, escape(reason), f"{len(some):,}", span, escape(some[0].flight))
    return table


def verdict(comparison: Comparison) -> Text:
    """Return a comparison as one line that begins with its verdict."""
    word, style = ("OK  ", "bold green") if comparison.holds else ("FAIL", "bold red")
    return Text.assemble((word, style), " ", str(comparison))


def differences_table(comparison: Comparison) -> Table:
    """Return a comparison's first differences."""
    count = len(comparison.differences)
    table = _table(f"{comparison.promise}: the first of {count:,} differences", "of", "expected", "found")
    for difference in comparison.differences[:SHOWN_DIFFERENCES]:
        table.add_row(*(escape(_shown(value)) for value in (difference.key, difference.expected, difference.found)))
    return table


def _rates(check: Check, timings: Timings) -> Iterator[Text]:
    deliveries = sum(check.settled.values())
    if timings.published:
        yield Text(f"Published {_rate(timings.published, 'flights', timings.publishing)}.")
    yield Text(
        f"Settled {_rate(deliveries, 'messages', timings.consuming)} "
        f"over {len(GROUPS)} groups, the start of the consumer processes included.\n"
    )


def _rate(count: int, things: str, seconds: float) -> str:
    return f"{count:,} {things} in {seconds:.1f} s: {count / max(seconds, 0.001):,.0f} {things}/s"


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _table(title: str, *columns: str) -> Table:
    """Return an empty table; a column that begins with > holds numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table
