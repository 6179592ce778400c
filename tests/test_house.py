"""The rules of the house that ruff, mypy and import-linter (make lint) do not know."""

import ast
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sqlqueue"
MODULES = sorted(PACKAGE.rglob("*.py"))
JUNK_DRAWERS = {"common", "helper", "helpers", "misc", "util", "utils"}


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def importers_of(names: set[str], files: list[Path]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in files
        for module in imported_modules(file)
        if module.partition(".")[0] in names
    ]


def test_the_package_knows_neither_the_tests_nor_the_example() -> None:
    assert not importers_of({"tests", "example_project"}, MODULES)


def test_the_core_is_pure() -> None:
    assert not importers_of({"django", "MySQLdb", "psycopg", "sqlite3"}, sorted((PACKAGE / "core").rglob("*.py")))


def test_there_are_no_junk_drawers() -> None:
    drawers = [str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*") if path.stem in JUNK_DRAWERS]
    assert not drawers


COMPARED = re.compile(r"fencing_token\W*(=|<|>|!=|\bIN\b|\bIS\b)\W*%s", re.IGNORECASE)
LOOKUPS = {"filter", "exclude", "get", "Q"}


def comparisons_of_tokens(file: Path) -> Iterator[str]:
    """Yield where a module compares a fencing token with a value: in the text of a statement, or in a lookup."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            compares = bool(COMPARED.search(node.value))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in LOOKUPS:
            compares = any((keyword.arg or "").startswith("fencing_token") for keyword in node.keywords)
        else:
            continue
        if compares:
            yield f"{file.relative_to(ROOT)}:{node.lineno}"


def test_the_fence_stands_in_one_place() -> None:
    fence = PACKAGE / "log" / "fence.py"
    assert len(list(comparisons_of_tokens(fence))) == 1
    assert not [place for file in MODULES if file != fence for place in comparisons_of_tokens(file)]


@pytest.mark.django_db
def test_the_migrations_are_complete() -> None:
    said = StringIO()
    try:
        call_command("makemigrations", "sqlqueue", check=True, dry_run=True, stdout=said, stderr=said)
    except (SystemExit, CommandError) as error:
        pytest.fail(f"The models have changed: python manage.py makemigrations sqlqueue ({error})\n{said.getvalue()}")
