"""No limit is forgotten: tests/limits.py names every one, and the test that goes over it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sqlqueue
from tests.limits import NO_LIMITS, OVER

pytestmark = pytest.mark.once

PACKAGE = Path(sqlqueue.__file__).parent
ROOT = PACKAGE.parent


def is_number(value: ast.expr) -> bool:
    """Tell whether an expression is a number, or is reckoned from numbers and names alone."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float)) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    if isinstance(value, ast.BinOp):
        sides = (value.left, value.right)
        return any(map(is_number, sides)) and all(isinstance(one, ast.Name) or is_number(one) for one in sides)
    return False


def numbers(tree: ast.Module) -> Iterator[str]:
    """Yield the names in capitals that a module gives to numbers."""
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts))
        for name, value in pairs:
            if isinstance(name, ast.Name) and name.id.isupper() and is_number(value):
                yield name.id


def constants() -> set[str]:
    """Return every such constant of the package, as module:name."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        if not module.startswith("migrations."):
            found |= {f"{module}:{name}" for name in numbers(ast.parse(file.read_text()))}
    return found


def listed() -> list[str]:
    return [*OVER, *(name for names in NO_LIMITS.values() for name in names)]


def test_every_constant_is_listed_and_everything_listed_is_there() -> None:
    names = set(listed())
    assert constants() - names == set(), "list these in tests/limits.py, with a test that goes over each limit"
    assert names - constants() == set(), "these are gone"


def test_nothing_is_listed_twice() -> None:
    assert len(listed()) == len(set(listed()))


@pytest.mark.parametrize("test", sorted(set(OVER.values())))
def test_the_test_that_goes_over_it_exists(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert name in functions
