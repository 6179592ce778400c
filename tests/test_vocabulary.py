"""Names and prose use the field's terms, as docs/glossary.md does; coined ones that they replaced stay away."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sqlqueue"
MODULES = [file for file in sorted(PACKAGE.rglob("*.py")) if "migrations" not in file.parts]
TEXTS = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", *sorted(PACKAGE.rglob("*.html"))]

# Parts of names, and what to write instead.
NAMES = {
    "adversities": "crash handlers",
    "bell": "notifier",
    "bury": "dead-letter, reap",
    "doorbell": "listener",
    "fate": "delivery status",
    "fates": "delivery status",
    "hand": "attempt",
    "handed": "dispatched, released",
    "hands": "attempts",
    "incarnation": "server identity",
    "keeper": "lease renewer",
    "lane": "ordering queue",
    "lanes": "ordering queues",
    "letter": "dead letter",
    "letters": "dead letters",
    "manners": "consumer options",
    "parked": "blocked",
    "patience": "lock timeout",
    "place": "group-topic, message ref, position",
    "places": "group-topics, message refs, positions",
    "pulse": "liveness",
    "recorder": "stats recorder",
    "redeliver": "republish",
    "redrive": "replay",
    "replayer": "request task",
    "resident": "background task",
    "residents": "background tasks",
    "ring": "notify",
    "rung": "notified",
    "suspect": "in doubt",
    "suspects": "in doubt",
    "tally": "outcome counter",
    "turn": "iteration",
    "turns": "iterations",
    "verb": "operation",
    "verbs": "operations",
    "vitals": "process health",
}
# Names of Django.
THEIRS = {"MigrationRecorder", "recorder"}
# Words of prose, and what to write instead.
PROSE = {
    r"nobody|somebody|whoever|whomever": "a named subject: the dispatcher, no process, an operator",
    r"in hand": "in flight",
    r"hand(s|ed|ing)? (it |them |a message |messages |partitions )?(out|back)": "dispatch, release",
    r"redriv\w+|redrive": "replay",
    r"doorbells?|residents?|manners|suspects": "the glossary's term",
    r"(?<!dead )(?<!capital )letters?(?= of a group| of groups|s of)": "dead letters",
    r"what (has )?became of": "delivery status, outcome",
}
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def names(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every name in a module that is not one of others."""
    with file.open() as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type == tokenize.NAME and token.string not in THEIRS:
                yield token.start[0], token.string


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of comments and strings of a module, or of every line of a document."""
    if file.suffix != ".py":
        yield from enumerate(file.read_text().splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def coined(name: str) -> list[str]:
    """Return the parts of a name that the glossary has replaced: `dead_letters` and `hand_over` are its
    terms, `letters` and `hand` are not."""
    known = re.sub("dead_?letters?|stats_?recorder|hand(ed)?_?over", "", name, flags=re.IGNORECASE)
    return [part.lower() for part in PART.findall(known) if part.lower() in NAMES]


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_names_are_the_glossarys(file: Path) -> None:
    found = {f"line {line}: {name} ({NAMES[part]})" for line, name in names(file) for part in coined(name)}
    assert not found


@pytest.mark.parametrize("file", [*MODULES, *TEXTS], ids=lambda file: str(file.relative_to(ROOT)))
def test_prose_is_plain(file: Path) -> None:
    found = [
        f"line {line}: {match[0]!r}: write {instead}"
        for line, text in prose(file)
        for wrong, instead in PROSE.items()
        for match in re.finditer(rf"\b({wrong})\b", text, re.IGNORECASE)
    ]
    assert not found


def test_what_is_coined_is_found() -> None:
    assert coined("DeadLetter") == coined("dead_letters") == coined("letterhead") == []
    assert coined("_hands_out") == ["hands"]
    assert coined("LETTERS") == ["letters"]
