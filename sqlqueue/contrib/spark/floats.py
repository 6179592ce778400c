"""The floats that texts in files become: the text is refused if the float does not keep its digits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, StringType, StructType


def why_no_float(kind: DataType, remedy: str) -> Callable[[Column], Column] | None:
    """Return a function that makes, of the texts of a column of this type, what a text has that no float can be made of
    without a change, NULL if it has nothing; None if no value of the type has floats in it.

    remedy: what keeps all digits. Texts of a struct or an array are JSON.
    """
    if not _has_floats(kind):
        return None

    def why(texts: pa.Array) -> pa.Array:
        return pa.array(
            [None if text is None else _why_of(kind, text, remedy) for text in texts.to_pylist()], pa.string()
        )

    return F.arrow_udf(why, StringType())


def _has_floats(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_floats(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_floats(field.dataType) for field in kind)
    return isinstance(kind, DoubleType)


def _why_of(kind: DataType, text: str, remedy: str) -> str | None:
    value: Any = text
    if not isinstance(kind, DoubleType):
        try:
            value = json.loads(text, parse_float=str, parse_int=str, parse_constant=str, strict=False)
        except (ValueError, RecursionError):  # options of Spark allow other quotes, and more
            return f"floats in what is no plain JSON ({remedy}): {text}"
    for number in _floats(kind, value):
        finite, kept = _kept(number)
        if not finite:
            return f"what JSON has no number for: {number}"
        if not kept:
            return f"more digits than a float keeps ({remedy}): {number}"
    return None


def _floats(kind: DataType, value: Any) -> Iterator[str]:
    """Yield the texts of the floats in a value; Spark takes empty texts for no value."""
    if isinstance(kind, DoubleType) and isinstance(value, str) and value:
        yield value
    elif isinstance(kind, ArrayType) and isinstance(value, list):
        for item in value:
            yield from _floats(kind.elementType, item)
    elif isinstance(kind, StructType) and isinstance(value, dict):
        for field in kind:
            yield from _floats(field.dataType, value.get(field.name))


def _kept(text: str) -> tuple[bool, bool]:
    """Tell whether a text is a finite number, and whether the float that is read from it, written with as many digits,
    is the same number."""
    plain = text.strip().rstrip("dDfF")  # Java reads 1.5d, too
    try:
        value, exact = float(plain), Decimal(plain)
    except (ValueError, ArithmeticError):
        return False, False
    if not math.isfinite(value):
        return False, False
    digits = len("".join(map(str, exact.as_tuple().digits)).strip("0"))
    return True, exact in (Decimal(repr(value)), Decimal(f"{value:.{max(digits, 1) - 1}e}"))
