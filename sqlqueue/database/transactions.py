"""Whose transaction it is that a statement would run in."""

from __future__ import annotations


def in_test_case(connection: object) -> bool:
    """Tell whether the transaction is a TestCase's, whose rows must vanish with it."""
    return any(getattr(block, "_from_testcase", False) for block in getattr(connection, "atomic_blocks", ()))
