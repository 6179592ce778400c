"""Failures of one cause have one fingerprint."""

import pytest

from sqlqueue.core.fingerprint import fingerprint
from sqlqueue.core.outcomes import describe

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
    assert fingerprint(raised(1)) == "ValueError in core/test_fingerprint.py:raised"
    assert fingerprint(raised(1, deeper=True)) == "KeyError in core/test_fingerprint.py:inner"


def test_messages_and_line_numbers_do_not_matter() -> None:
    assert fingerprint(raised(1)) == fingerprint(raised(2)).replace("line 1", "line 2")


def test_a_reason_stands_for_itself_without_its_numbers() -> None:
    assert fingerprint("unknown aircraft 4711\nmore") == "unknown aircraft #"
    assert fingerprint("") == ""
    assert len(fingerprint("x" * 999)) == 200
