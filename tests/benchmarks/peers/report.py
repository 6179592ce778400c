"""The report of a run: tables for the terminal and for docs/benchmarks.md, and who is ahead of sqlqueue where."""

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import charts
from tests.benchmarks.peers.figures import OWN, ahead, columns, label, shown, summary

BEGIN, END = "<!-- measured: make benchmark-peers writes this part -->", "<!-- end of what is measured -->"
TABLES = {
    "Enqueue, messages/s": ("enqueue",),
    "Consume, messages/s": ("consume",),
    "Latency from the call that enqueues to the handler, ms": ("latency", "load"),
    "Statements (of those on Redis: its commands), and memory in MB": ("statements", "memory"),
}
KILLS = ("messages", "kills at work", "lost", "done twice", "finished after")


def machine() -> dict[str, str]:
    """Describe what the figures were taken on."""
    model = next(
        (line.partition(":")[2].strip() for line in lines_of("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory = next((int(line.split()[1]) for line in lines_of("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "CPUs": f"{os.cpu_count()}, {model or platform.machine()}",
        "memory": f"{memory / 2**20:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }


def lines_of(file: str) -> list[str]:
    path = Path(file)
    return path.read_text().splitlines() if path.exists() else []


def tables(run: Mapping[str, Any], charted: bool = True) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield the title, the head and the rows of each table. charted: with the columns that a chart draws."""
    medians = medians_of(run)
    for title, keys in TABLES.items():
        measures = [one for one in columns(keys) if any(found.get(one.key) is not None for found in medians.values())]
        told = [one for one in measures if charted or not one.chart]
        rows = [[label(name), *(shown(one, found.get(one.key)) for one in told)] for name, found in medians.items()]
        if measures:
            shown_rows = [row for row in rows if charted or set(row[1:]) != {"–"}]
            yield title, ["", *(one.title for one in told)], shown_rows
    if run["kills"]:
        yield (
            f"Killed ten times (kill -9) while it handled {next(iter(run['kills'].values()))['messages']} messages",
            *kills(run["kills"]),
        )


def kills(found: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    head = ["", "kills while it worked", "not handled", "handled twice", "the last one, s after the last kill"]
    rows = [[label(name), *(f"{one[key]:,.0f}" for key in KILLS[1:])] for name, one in found.items()]
    return head, rows


def medians_of(run: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    return {name: summary(rounds) for name, rounds in run["rounds"].items() if rounds}


def where_peers_are_ahead(medians: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    """Yield a sentence for each measure in which a peer is better than sqlqueue."""
    for keys in TABLES.values():
        for measure in columns(keys):
            found = ahead(measure, medians)
            if found and found[1]:
                own, better = found
                named = ", ".join(f"{label(name)} ({shown(measure, medians[name][measure.key])})" for name in better)
                what = f"{measure.key.split()[0].rstrip(',').capitalize()}, {measure.title}"
                yield f"{what}: {named}; {label(own)} has {shown(measure, medians[own][measure.key])}."


def where_peers_do_less_twice(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence if peers that have lost nothing have handled fewer messages twice than sqlqueue."""
    own = [name for name, one in found.items() if name.startswith(OWN) and not one["lost"]]
    if own:
        best = min(own, key=lambda name: found[name]["done twice"])
        safe = sorted((one["done twice"], name) for name, one in found.items() if not one["lost"])
        better = [f"{label(name)} ({twice})" for twice, name in safe if twice < found[best]["done twice"]]
        if better:
            mine = f"{label(best)} has {found[best]['done twice']}"
            yield f"Kills, messages handled twice, of those that lost none: {', '.join(better)}; {mine}."


def sentences(run: Mapping[str, Any]) -> list[str]:
    """Return where a peer is ahead of sqlqueue, measure by measure."""
    return [*where_peers_are_ahead(medians_of(run)), *where_peers_do_less_twice(run["kills"])]


def markdown(run: Mapping[str, Any], images: Sequence[tuple[str, str]]) -> str:
    """Return the measured part of docs/benchmarks.md."""
    about = "; ".join(f"{name}: {value}" for name, value in {**run["machine"], **run["servers"]}.items())
    taken = (
        f"{run['date']}, medians of {run['rounds done']} interleaved round{'s' * (run['rounds done'] != 1)},"
        f" {run['minutes']:.0f} minutes, load of the"
        f" machine before it {run['load before']:.1f}. {about}."
    )
    text = [
        taken,
        "### Where a peer is ahead",
        "\n".join(f"- {line}" for line in sentences(run)) or "Nowhere in this run.",
    ]
    pictures = iter(images)
    for title, head, rows in tables(run, charted=False):
        text.append(f"### {title}")
        if picture := next(pictures, None):
            text.append(f"![{picture[0]}]({picture[1]})")
        if len(head) > 1:
            text.append(table(head, rows))
    text.append("### How each was set up")
    text.append(
        table(["", "version", "set up"], [[label(n), f["version"], f["setup"]] for n, f in run["peers"].items()])
    )
    if run["failed"]:
        text.append("### What failed")
        text.append("\n".join(f"- {label(name)}: {why}" for name, why in run["failed"].items()))
    return "\n\n".join(text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---", *(["---:"] * (len(head) - 1) if head[1] != "version" else ["---"] * (len(head) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def publish(run: Mapping[str, Any], folder: Path) -> None:
    """Write figures and charts into the documentation's folder: benchmarks.json, images, and the part of benchmarks.md
    between its marks. Raise ValueError if there are no marks."""
    page = folder / "benchmarks.md"
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no place for the figures: it must have the lines {BEGIN!r} and {END!r}.")
    made = charts.write(folder / "images", medians_of(run))
    measured = markdown(run, [(title, f"images/{file.name}") for title, file in made])
    page.write_text(f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}")
    (folder / "benchmarks.json").write_text(json.dumps(compact(run), indent=1, ensure_ascii=False) + "\n")


def compact(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run for the documentation: its medians, and the figures of each round without single samples."""
    rounds = {
        name: [{key: value for key, value in one.items() if not isinstance(value, list)} for one in found]
        for name, found in run["rounds"].items()
    }
    return rounded({**run, "rounds": rounds, "medians": medians_of(run)})


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value
