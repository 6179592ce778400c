"""Reads that prove which server has answered them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.database.statements import dialect, execute


def select(
    alias: str, text: str, values: Sequence[object], server: ServerIdentity | None, columns: int, at: int
) -> Sequence[Any]:
    """Return a statement's rows, see ServerIdentity.select()."""
    if server is not None and server.identity:
        if "ORDER BY" in text and " UNION ALL " not in text:
            text = dialect(alias).branch.format(text)
        return server.select(text, values, columns, at)
    rows: Sequence[Any] = execute(alias, text, values).fetchall()
    return rows
