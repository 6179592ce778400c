"""Reads that prove which server has answered them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity


def select(
    log: Log, text: str, values: Sequence[object], server: ServerIdentity | None, columns: int, at: int
) -> Sequence[Any]:
    """Return a statement's rows, see ServerIdentity.select()."""
    if server is not None and server.identity:
        if "ORDER BY" in text and " UNION ALL " not in text:
            text = log.dialect.branch.format(text)
        return server.select(text, values, columns, at)
    rows: Sequence[Any] = log.execute(text, values).fetchall()
    return rows
