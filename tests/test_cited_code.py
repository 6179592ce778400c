"""Documents for maintainers say where something stands in the code: what they name is there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.documents import ROOT

pytestmark = pytest.mark.once

# `with Name(…):` (of `sqlqueue.module`)
IMPORTED = re.compile(r"`(?:with )?(\w+)[^`]*` \(of `(sqlqueue[\w.]+)`\)")
DOCUMENTS = [ROOT / "docs/protocol.md", ROOT / "CONTRIBUTING.md"]
# `one`, `two` and `three` in [log/module](../sqlqueue/log/module.py)
CITED = re.compile(r"((?:`\w+`(?:, | and | or )?)+) in\s+\[[^]]*\]\(([^)]+\.py)\)")


def cited(document: Path) -> list[tuple[str, Path]]:
    """Return each name that a document says stands in a file, and the file."""
    found = CITED.findall(document.read_text())
    return [(name, document.parent / file) for names, file in found for name in re.findall(r"`(\w+)`", names)]


@pytest.mark.parametrize(("document", "least"), [*zip(DOCUMENTS, (30, 15))], ids=lambda value: str(value)[-15:])
def test_they_name_enough(document: Path, least: int) -> None:
    assert len(cited(document)) > least


@pytest.mark.parametrize(("name", "file"), [one for document in DOCUMENTS for one in cited(document)])
def test_what_they_name_is_there(name: str, file: Path) -> None:
    assert re.search(rf"^\s*(?:async )?(?:def|class) {name}\b|^{name}(?:: .+)? = ", file.read_text(), re.MULTILINE)


def test_what_documents_say_to_import_is_there() -> None:
    found = [one for document in sorted(ROOT.glob("docs/**/*.md")) for one in IMPORTED.findall(document.read_text())]
    assert found
    assert [(name, module) for name, module in found if not hasattr(import_module(module), name)] == []


def test_the_checks_before_a_commit_are_those_of_make_lint() -> None:
    target = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert target is not None
    lint = [line.strip().replace("$(BIN)", ".venv/bin") for line in target[1].splitlines()]
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert hooks == lint
