"""docs/architecture.md is true: its picture has the packages and their imports, its steps name modules that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT

pytestmark = pytest.mark.once

DOCUMENT = ROOT / "docs/architecture.md"
PACKAGE = ROOT / "sqlqueue"
PACKAGES = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"migrations"}
Graph = dict[str, set[str]]


def imported(file: Path) -> Iterator[str]:
    """Yield what a module imports, anywhere in it: for type hints only and in functions included."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports(package: Path) -> Graph:
    """Return, by package, which others its modules import."""
    packages = {path.parent.name for path in package.glob("*/__init__.py")} - {"migrations"}
    found: Graph = {name: set() for name in packages}
    for name in packages:
        for file in (package / name).rglob("*.py"):
            starts = {".".join(module.split(".")[:2]) for module in imported(file)}
            found[name] |= {other for other in packages - {name} if f"{package.name}.{other}" in starts}
    return found


def reachable(graph: Graph, start: str) -> set[str]:
    """Return what arrows lead to from a package, in one step or more."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def without_shortcuts(graph: Graph) -> Graph:
    """Return a graph without the arrows that a longer way along arrows replaces."""
    return {
        name: {end for end in ends if not any(end in reachable(graph, other) for other in ends - {end})}
        for name, ends in graph.items()
    }


def drawn(text: str) -> Graph:
    """Return the arrows with solid lines of the picture, by the package where they begin."""
    picture = re.search(r"```mermaid\n(.*?)```", text, re.DOTALL)
    assert picture is not None
    arrows = re.findall(r'^\s*(\w+)(?:\[".*?"\])? --> (\w+)$', picture[1], re.MULTILINE)
    boxes = re.findall(r'(\w+)\["', picture[1])
    assert len(boxes) == len(set(boxes))
    assert len(arrows) == len(set(arrows))
    graph: Graph = {name: set() for name in boxes}
    for start, end in arrows:
        graph[start].add(end)
    return graph


def steps() -> dict[str, set[str]]:
    """Return, by the number of each step, the packages of the modules that its row links."""
    rows = re.findall(r"^\| (\d+) \w+ \|.*\|(.*)\|$", DOCUMENT.read_text(), re.MULTILINE)
    return {number: set(re.findall(r"\(\.\./sqlqueue/(\w+)/", modules)) for number, modules in rows}


def test_the_boxes_are_the_packages() -> None:
    assert set(drawn(DOCUMENT.read_text())) == PACKAGES


def test_the_arrows_are_the_imports() -> None:
    assert drawn(DOCUMENT.read_text()) == without_shortcuts(imports(PACKAGE))


def test_the_imports_close_no_circle() -> None:
    graph = imports(PACKAGE)
    assert [name for name in graph if name in reachable(graph, name)] == []


def test_each_box_has_the_steps_of_its_modules() -> None:
    boxes = re.findall(r'(\w+)\["\w+<br>([\d ·]+)"\]', DOCUMENT.read_text())
    said = {name: numbers.split(" · ") for name, numbers in boxes}
    assert said == {
        package: [number for number, packages in steps().items() if package in packages]
        for package in set().union(*steps().values())
    }


def test_the_steps_are_numbered_and_link_what_they_name() -> None:
    assert list(steps()) == [str(number) for number in range(1, len(steps()) + 1)]
    assert len(steps()) >= 8
    for name, target in re.findall(r"\[([\w/]+)\]\(\.\./(?:sqlqueue/)?([\w/]+\.py)\)", DOCUMENT.read_text()):
        assert target.removesuffix(".py") == name


def test_each_package_has_its_duty_and_imports_from_later_rows_only() -> None:
    text = DOCUMENT.read_text().partition("## The packages")[2]
    rows = [re.findall(r"`(\w+)`", first) for first in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)]
    assert sorted(name for row in rows for name in row) == sorted(PACKAGES)
    graph = imports(PACKAGE)
    for number, row in enumerate(rows):
        later = {name for below in rows[number + 1 :] for name in below}
        assert [(name, graph[name] - later) for name in row if graph[name] - later] == []


def test_the_linter_holds_the_order_of_the_same_packages_with_imports_for_type_hints() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert "exclude_type_checking_imports" not in text
    layers = re.search(r"^layers = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert layers is not None
    assert set(re.findall(r"\w+", layers[1])) & PACKAGES == PACKAGES


def test_an_import_that_is_not_drawn_is_found(tmp_path: Path) -> None:
    package = tmp_path / "sqlqueue"
    for name, text in {
        "core": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sqlqueue.log import settle",
        "database": "def late():\n    import sqlqueue.core.keys",
        "log": "from sqlqueue import database, version\nfrom sqlqueue.core.keys import KEY_LENGTH",
    }.items():
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text(text)
    assert imports(package) == {"core": {"log"}, "database": {"core"}, "log": {"core", "database"}}
    assert without_shortcuts({"core": set(), "database": {"core"}, "log": {"core", "database"}})["log"] == {"database"}
    assert "core" in reachable(imports(package), "core")
