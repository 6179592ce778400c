"""SQLite."""

from __future__ import annotations

import threading
from typing import ClassVar

from sqlqueue.database.dialects.base import RANGES, UNIQUE, WithOnConflict


class SQLite(WithOnConflict):
    """One writer at a time: offsets become visible in their order, and no lock is needed but the writer's."""

    vendor = "sqlite"
    # SQLite has one writer, and lets the others sleep and try again; threads of one process had better queue up here.
    writers = threading.RLock()
    gated = False
    branch = "SELECT * FROM ({})"
    rows_of_one_insert = 500
    remaining = "(JULIANDAY({}) - JULIANDAY('now')) * 86400.0".format  # a double keeps them to some 50 microseconds
    # Times are text, with six digits behind the seconds or none.
    microseconds = "CAST(STRFTIME('%%s', {0}) AS INTEGER) * 1000000 + CAST(SUBSTR({0}, 21, 6) AS INTEGER)".format
    moved = "DJANGO_FORMAT_DTDELTA('+', {}, %s)".format  # SQLite's own functions keep milliseconds only
    placeholders: ClassVar = {
        **RANGES,
        **UNIQUE,
        "now": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')",
        "later": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', (%s / 1000000.0) || ' seconds')",
        "earlier": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', (%s / -1000000.0) || ' seconds')",
        "minute": "STRFTIME('%%Y-%%m-%%d %%H:%%M:00', 'now')",
        "greatest": "MAX",
        "least": "MIN",
        "true": "1",
        "false": "0",
        "share": "",
        "update": "",
        "skip": "",
        "by_stream": " INDEXED BY sqlqueue_message_fetch",
        "by_offset": " NOT INDEXED",
        "by_due": " INDEXED BY sqlqueue_scheduled_due",
        "by_receipt": " INDEXED BY sqlqueue_receipt_message",
        "by_id": " NOT INDEXED",
        "by_end": "",
        "by_holder": "",
        "by_digest": "",
        "by_message_id": "",
        "by_scheduled_id": "",
        "then": "CROSS JOIN",
        "div": "/",
        "begun": "NULL",
        "bytes": "LENGTH(CAST(payload AS BLOB)) + COALESCE(LENGTH(CAST(headers AS BLOB)), 0)"
        " + COALESCE(LENGTH(CAST(body AS BLOB)), 0)",
    }
