"""Filters: which messages a consumer wants, by their headers, payload, key and id as they are stored. Pure.

A filter is a dict of conditions, which all have to hold: a path, with a lookup behind two underscores if it is not
`exact`, and the value that it is compared with. A path is `key`, `id`, `payload`, or names separated by dots below
`payload` or `headers`; a whole number picks an element of an array. The lookups are those of `LOOKUPS`.

A condition never raises for a message: where the path is missing, or where what is found there is of another type than
the value, it does not hold. So a number equals numbers only (1 and 1.0 are equal, 1 and True are not), and texts are
compared with texts, by code points.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlqueue.core.codec import decode
from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.exceptions import ConfigurationError

Row = TypeVar("Row", bound="tuple[Any, ...]")
Test = Callable[[Any], bool]
Path = Sequence[tuple[str, int | None]]  # each name, and the element of an array that it is
Condition = tuple[Path, Test, bool]  # the bool: it holds where nothing lies at the path
Texts = tuple[str, ...]  # of which the JSON text has one, or the condition cannot hold
Lookup = tuple[Test, Texts]  # the test of what is found, and the texts that its JSON needs


FIELDS: Final = ("headers", "payload", "key", "id")
NESTED: Final = ("headers", "payload")
SEPARATOR: Final = "__"
ELEMENT: Final = re.compile(r"[0-9]{1,9}")  # of an array
LISTS: Final = (list, tuple, set, frozenset)
MISSING: Final = object()
MOST_SOUGHT: Final = 10  # texts: to look for more of them takes longer than to read the JSON


class Filter:
    """A filter that was checked. `text`: its conditions, for logs; `fields`: what it looks at, of FIELDS."""

    def __init__(self, given: Any):
        """Raises ConfigurationError for conditions that cannot be understood, all problems at once."""
        if not isinstance(given, Mapping) or not given:
            raise ConfigurationError(
                f'where must be a dict of conditions ({{"headers.country": ["DE", "AT"]}}), not {given!r}'
            )
        self.text = ", ".join(f"{name}={value!r}" for name, value in given.items())
        self._plain: list[tuple[int, Test]] = []  # of key and id: the field's index in a message
        # Of headers and of the payload, by index: the texts one of which their JSON needs, and the conditions.
        self._nested: dict[int, tuple[list[Texts], list[Condition]]] = {}
        self.fields: set[str] = set()
        problems: list[str] = []
        for name, value in given.items():
            try:
                self._add(name, value)
            except ConfigurationError as error:
                problems.append(f"where[{name!r}]: {error}")
        if problems:
            raise ConfigurationError("; ".join(problems))
        self._nested = dict(sorted(self._nested.items(), reverse=True))  # headers first: they are short

    def _add(self, name: Any, value: Any) -> None:
        (field, *path), lookup = _parsed(name)
        test, needed = LOOKUPS[lookup](value)
        self.fields.add(field)
        index = FetchedMessage._fields.index(field)
        if field in NESTED:
            texts, conditions = self._nested.setdefault(index, ([], []))
            steps = [(one, int(one) if ELEMENT.fullmatch(one) else None) for one in path]
            conditions.append((steps, test, lookup == "exists" and not value))
            if 0 < len(needed) <= MOST_SOUGHT:
                texts.append(needed)
        elif all(isinstance(one, str) for one in (value if isinstance(value, LISTS) else [value])):
            self._plain.append((index, test))
        else:
            raise ConfigurationError(f"{field!r} is a text, and never equals {value!r}: write a text")

    def select(self, rows: Iterable[Row]) -> list[Row]:
        """Return the messages that match, in their order. Each message of the log passes here: key and id come first,
        one condition after another for all of them."""
        for index, test in self._plain:
            rows = [row for row in rows if test(row[index])]
        matches = self.matches
        return [row for row in rows if matches(row)]

    def matches(self, message: tuple[Any, ...]) -> bool:
        """Tell whether all conditions hold for a message as a fetch reads it.

        One whose JSON cannot be read, because plain SQL has inserted it nested too deep, matches unless its text shows
        that it cannot: its handler fails, and the message is not lost unseen.
        """
        for index, test in self._plain:
            if not test(message[index]):
                return False
        for index, (texts, conditions) in self._nested.items():
            stored = message[index]
            if texts and type(stored) is str and "\\" not in stored:  # nothing in it is written with an escape
                for some in texts:
                    for text in some:
                        if text in stored:
                            break
                    else:
                        return False
            try:
                value = MISSING if index == PAYLOAD and message[BODY] is not None else decode(stored)
            except (ValueError, RecursionError):
                return True
            for path, test, absent in conditions:
                found = value
                for name, element in path:
                    if type(found) is dict:
                        found = found.get(name, MISSING)
                    elif type(found) is list and element is not None and element < len(found):
                        found = found[element]
                    else:
                        found = MISSING
                        break
                if not (absent if found is MISSING else test(found)):
                    return False
        return True

    def __repr__(self) -> str:
        return f"<Filter {self.text}>"


PAYLOAD: Final = FetchedMessage._fields.index("payload")
BODY: Final = FetchedMessage._fields.index("body")


def _parsed(name: Any) -> tuple[list[str], str]:
    """Return the path and the lookup that a condition's name says."""
    if not isinstance(name, str):
        raise ConfigurationError("name a path, such as 'headers.country' or 'payload.total__gte'")
    path, separator, lookup = name.rpartition(SEPARATOR)
    if not separator:
        path, lookup = name, "exact"
    elif lookup not in LOOKUPS:
        raise ConfigurationError(
            f"no lookup {lookup!r}.{did_you_mean(lookup, LOOKUPS)} For a name with {SEPARATOR!r} in it write"
            f" '{name}{SEPARATOR}exact'"
        )
    names = path.split(".")
    if names[0] not in FIELDS:
        raise ConfigurationError(f"no field {names[0]!r}.{did_you_mean(names[0], FIELDS)}")
    if names[0] not in NESTED and (len(names) > 1 or lookup == "exists"):
        raise ConfigurationError(f"{names[0]!r} is a text that every message has, with nothing below it")
    if names == ["headers"]:
        raise ConfigurationError("name one of the headers: 'headers.country'")
    if "" in names:
        raise ConfigurationError("a name between two dots is empty")
    return names, lookup


# -- lookups: each checks its value, and returns the test of what is found, and the texts that its JSON needs ----------


def _among(values: Any) -> Lookup:
    if not isinstance(values, LISTS):
        raise ConfigurationError(f"'in' takes a list, not {values!r}")
    if not values:
        raise ConfigurationError("an empty list matches nothing: name values")
    for value in values:
        _check_scalar(value)
    plain = frozenset(value for value in values if value is not None and not isinstance(value, bool))
    others = [value for value in values if value is None or isinstance(value, bool)]

    def test(found: Any) -> bool:
        kind = type(found)
        if kind is str or kind is int or kind is float:
            return found in plain
        return any(found is other for other in others)

    strings = [value for value in plain if isinstance(value, str)]
    texts = tuple(map(_quoted, strings)) if len(strings) == len(plain) + len(others) else ()
    return test, texts


def _compared(compare: Callable[[Any], Test]) -> Callable[[Any], Lookup]:
    def made(value: Any) -> Lookup:
        _check_scalar(value)
        passes = compare(value)
        if isinstance(value, str):
            return (lambda found: type(found) is str and passes(found)), ()
        if value is None or isinstance(value, bool):
            raise ConfigurationError(f"only numbers and texts have an order, and {value!r} is neither")
        return (lambda found: (type(found) is int or type(found) is float) and passes(found)), ()

    return made


def _exists(value: Any) -> Lookup:
    if not isinstance(value, bool):
        raise ConfigurationError(f"'exists' takes True or False, not {value!r}")
    return (lambda found: value), ()


def _contains(value: Any) -> Lookup:
    equal, _ = _among([value])

    def test(found: Any) -> bool:
        if type(found) is list:
            return any(equal(one) for one in found)
        return type(found) is str and isinstance(value, str) and value in found

    return test, (_quoted(value)[1:-1],) if isinstance(value, str) else ()


def _startswith(value: Any) -> Lookup:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"'startswith' takes a text, not {value!r}")
    return (lambda found: type(found) is str and found.startswith(value)), (_quoted(value)[:-1],)


def _quoted(value: str) -> str:
    """Return a text as JSON has it."""
    return json.dumps(value, ensure_ascii=False)


LOOKUPS: Final[Mapping[str, Callable[[Any], Lookup]]] = {
    "exact": lambda value: _among(value if isinstance(value, LISTS) else [value]),
    "in": _among,
    "gt": _compared(lambda value: lambda found: found > value),
    "gte": _compared(lambda value: lambda found: found >= value),
    "lt": _compared(lambda value: lambda found: found < value),
    "lte": _compared(lambda value: lambda found: found <= value),
    "exists": _exists,
    "contains": _contains,
    "startswith": _startswith,
}


def _check_scalar(value: Any) -> None:
    """Refuse a value that no JSON text, number, boolean or null equals."""
    if value is None or isinstance(value, (str, bool, int)):
        return
    if not isinstance(value, float):
        hint = ": write it as the payload has it, a text or a number"
        raise ConfigurationError(f"a value must be a text, a number, True, False or None, not {value!r}{hint}")
    if not math.isfinite(value):
        raise ConfigurationError(f"no JSON number equals {value!r}")
