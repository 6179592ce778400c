"""Slices in SQL: which messages of a shared partition belong to one, see core.slices."""

from __future__ import annotations

from sqlqueue.core.slices import FACTOR, HASHES, hashes_of

# Bits instead of a remainder, which would need %% beside parameters.
HASH = f"((({{column}} & {HASHES - 1}) * {FACTOR}) & {HASHES - 1})"


def in_slice(column: str, slice: int, slices: int) -> str:
    """Return the condition, with AND before it, that the offset in a column belongs to a slice; nothing for a partition
    that is not shared. Numbers, not parameters: a statement is composed once for each of at most 64 slices."""
    if slices == 1:
        return ""
    low, high = hashes_of(slice, slices)
    return f" AND {HASH.replace('{column}', column)} BETWEEN {low} AND {high}"


def of_offset_row(column: str, row: str) -> str:
    """Return the condition that the offset in a column belongs to the slice of an offset row."""
    hashed = HASH.replace("{column}", column)
    return f"{hashed} * {row}.slices BETWEEN {row}.slice * {HASHES} AND {row}.slice * {HASHES} + {HASHES - 1}"
