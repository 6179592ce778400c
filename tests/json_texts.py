"""JSON as somebody else writes it: white space, escapes, numbers in every form, names twice, quotation marks side by
side."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]

NUMBERS = ("0", "-0", "1", "1.0", "10e-1", "0.1E+1", "2", "-1.5", "100", "1e2", "1E+2", "9007199254740993", "0.5")
PIECES = ("a", "b", "ö", "1", ",", ":", " ", "{", "\\u0061", "\\/", "/", '\\"', "\\\\", "\\n", "\\ud83d\\ude00", "😀")
NAMES = ("a", "b", "ö", ",", ":", "/", "0", "\\u0061", "\\/", "\\u00f6")
SPACES = ("", "", " ", "\n ")


def json_text(choose: Choose, depth: int = 3) -> str:
    """Return a JSON text; choose: takes one of several things."""

    def value(depth: int) -> str:
        kind = choose(("number", "text", "literal", "object", "array")[: 5 if depth else 3])
        if kind == "number":
            return choose(NUMBERS)
        if kind == "literal":
            return choose(("null", "true", "false"))
        if kind == "text":
            return quoted(PIECES)
        count = choose((0, 1, 2, 3))
        if kind == "array":
            return f"[{separator(',').join(value(depth - 1) for _ in range(count))}]"
        return object_(count, depth)

    def object_(count: int, depth: int) -> str:
        pairs = (f'"{choose(NAMES)}"{separator(":")}{value(depth - 1)}' for _ in range(count))
        return f"{{{choose(SPACES)}{separator(',').join(pairs)}{choose(SPACES)}}}"

    def quoted(pieces: Sequence[str]) -> str:
        return f'"{"".join(choose(pieces) for _ in range(choose((0, 1, 2, 3))))}"'

    def separator(sign: str) -> str:
        return f"{choose(SPACES)}{sign}{choose(SPACES)}"

    return object_(4, depth)


def condition(choose: Choose) -> dict[str, object]:
    """Return a filter's conditions on such a payload."""
    names = ("a", "b", "ö", ",", ":", "/", "0")
    path = ".".join(["payload", *(choose(names) for _ in range(choose((1, 1, 2))))])
    texts = ("", "a", "ab", "ö", ",", ":", " ", "/", '"', "\\", "a\n", "😀", "1", "{")
    numbers = (0, 1, 1.0, 2, -1.5, 100, 0.5, 2**53 + 1)
    lookup = choose(("exact", "exact", "in", "gt", "gte", "lt", "lte", "contains", "startswith", "exists"))
    if lookup == "exists":
        return {f"{path}__exists": choose((True, False))}
    if lookup == "startswith":
        return {f"{path}__startswith": choose(texts[1:])}
    if lookup in ("gt", "gte", "lt", "lte"):
        return {f"{path}__{lookup}": choose((*numbers, *texts))}
    if lookup == "in":
        of = choose((texts, numbers, (*texts, *numbers, None, True)))
        return {f"{path}__in": [choose(of) for _ in range(choose((1, 2)))]}
    return {f"{path}__{lookup}": choose((*numbers, *texts, None, True, False))}
