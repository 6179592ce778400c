"""An error's text is what Python says of it, however often it was raised there."""

import gc
import traceback
import weakref
from collections.abc import Callable

import pytest

from sqlqueue.core import tracebacks
from sqlqueue.core.tracebacks import text_of

pytestmark = pytest.mark.once


class Value:
    """Something a handler may hold."""


def plain(number: int) -> None:
    raise ValueError(f"no {number}")


def on_one_line(number: int) -> None:
    (plain(number) if number % 2 else [].remove(number))  # type: ignore[func-returns-value]


def with_notes(number: int) -> None:
    error = KeyError(number)
    if hasattr(error, "add_note"):
        error.add_note(f"note {number}")
    raise error


def caused(number: int) -> None:
    try:
        plain(number)
    except ValueError as error:
        raise RuntimeError(f"because of {number}") from error


def in_handling(number: int) -> None:
    try:
        plain(number)
    except ValueError:
        raise RuntimeError(f"after {number}")  # noqa: B904


def without_its_context(number: int) -> None:
    try:
        plain(number)
    except ValueError:
        raise RuntimeError(f"instead of {number}") from None


def misspelt(number: int) -> None:
    numbr  # type: ignore[name-defined]  # noqa: B018, F821


def deep(number: int) -> None:
    if number < 100:
        deep(number + 1)
    plain(number)


KINDS = [plain, on_one_line, with_notes, caused, in_handling, without_its_context, misspelt, deep]


def raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it has not failed")


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_pythons_own(kind: Callable[[int], None]) -> None:
    for number in range(6):
        error = raised(lambda: kind(number))  # noqa: B023
        assert text_of(error) == "".join(traceback.format_exception(error))


def test_an_error_that_was_never_raised_has_one_too() -> None:
    assert text_of(ValueError("x")).strip() == "ValueError: x"


def test_equal_code_in_another_file_is_another_stack() -> None:
    errors = []
    for file in ("one.py", "other.py"):
        names: dict[str, Callable[[], object]] = {}
        exec(compile("def fail():\n    raise ValueError", file, "exec"), names)
        errors.append(raised(names["fail"]))
    assert [("one.py" in text_of(error), "other.py" in text_of(error)) for error in errors] == [
        (True, False),
        (False, True),
    ]


def test_a_stack_is_looked_up_once_and_what_the_handler_had_is_not_kept() -> None:
    def fail() -> None:
        held = Value()
        held_by_the_frame.append(weakref.ref(held))
        raise ValueError("x")

    held_by_the_frame: list[weakref.ref[Value]] = []
    tracebacks._lines.cache_clear()
    for _ in range(5):
        text_of(raised(fail))
    assert tracebacks._lines.cache_info().misses == 1
    gc.collect()
    assert [held() for held in held_by_the_frame] == [None] * 5


def test_of_many_stacks_only_some_are_remembered() -> None:
    for number in range(tracebacks.STACKS + 10):
        names: dict[str, Callable[[], object]] = {}
        exec(compile("def fail():\n    raise ValueError", f"{number}.py", "exec"), names)
        assert f"{number}.py" in text_of(raised(names["fail"]))
    assert tracebacks._lines.cache_info().currsize == tracebacks.STACKS
