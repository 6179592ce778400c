"""Failures of one cause have one fingerprint."""

import traceback
from collections.abc import Callable

import pytest

from sqlqueue.core.outcomes import describe, fingerprint, text_of

pytestmark = pytest.mark.once


def raised(value: object, deeper: bool = False) -> str:
    def inner() -> None:
        raise KeyError(value)

    try:
        if deeper:
            inner()
        raise ValueError(f"not {value}\nsecond: line")
    except Exception as error:
        return describe(error)


def test_it_names_the_class_and_the_last_frame() -> None:
    assert fingerprint(raised(1)) == "ValueError in core/test_error_text.py:raised"
    assert fingerprint(raised(1, deeper=True)) == "KeyError in core/test_error_text.py:inner"


def test_messages_and_line_numbers_do_not_matter() -> None:
    assert fingerprint(raised(1)) == fingerprint(raised(2)).replace("line 1", "line 2")


def test_a_reason_stands_for_itself_without_its_numbers() -> None:
    assert fingerprint("unknown aircraft 4711\nmore") == "unknown aircraft #"
    assert fingerprint("") == ""
    assert len(fingerprint("x" * 999)) == 200


# -- the text ---------------------------------------------------------------------------------------------------------


def plain(number: int) -> None:
    raise ValueError(f"no {number}")


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


def deep(number: int) -> None:
    if number < 100:
        deep(number + 1)
    plain(number)


KINDS = [plain, with_notes, caused, in_handling, without_its_context, deep]


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it has not failed")


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_pythons_own_without_marks_below_the_lines(kind: Callable[[int], None]) -> None:
    error = caught(lambda: kind(1))
    lines = "".join(traceback.format_exception(error)).splitlines()
    assert text_of(error).splitlines() == [line for line in lines if line.strip(" ~^")] or error.__context__


def test_an_error_that_was_never_raised_has_one_too() -> None:
    assert text_of(ValueError("x")).strip() == "ValueError: x"


def test_the_last_line_names_an_error_whatever_it_is() -> None:
    def misspelt() -> None:
        numbr  # type: ignore[name-defined]  # noqa: B018, F821

    for error in (caught(misspelt), caught(lambda: compile("(", "file.py", "exec"))):
        assert text_of(error).splitlines()[-1].startswith(type(error).__name__)
