"""The page of the signals has those of the code, with their arguments."""

import re

import pytest
from django.dispatch import Signal

from sqlqueue import signals
from tests.documents import ROOT

pytestmark = pytest.mark.once

SAME = "the same arguments"


def of_code() -> dict[str, list[str]]:
    """Return the arguments of each signal, as its line in the module lists them."""
    source = (ROOT / "sqlqueue/signals.py").read_text()
    found: dict[str, list[str]] = {}
    for name, comment in re.findall(r"^(\w+) = Signal\(.*?\)  # (.*)$", source, re.MULTILINE):
        plain = re.sub(r"\(.*?\)", "", comment).partition(":")[0]
        same = list(found.values())[-1] if comment.startswith(SAME) else []
        found[name] = same or [argument.strip() for argument in plain.split(",")]
    return found


def test_every_signal_is_documented_with_its_arguments() -> None:
    assert set(of_code()) == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    document = (ROOT / "docs/operations/signals.md").read_text().split("| --- | --- | --- |\n")[1].split("\n\n")[0]
    told: dict[str, list[str]] = {}
    for line in document.splitlines():
        names, _, arguments = (re.findall(r"`(\w+)`", cell) for cell in line.strip("|").split("|"))
        told |= dict.fromkeys(names, arguments)
    assert told == of_code()
