"""Formats log records as JSON, one object a line."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "delivery"}


class JSONLines(logging.Formatter):
    """Formats a record as time (UTC), level, logger, process, message, exception, and the fields that filters
    (DeliveryFilter) and `extra` have added, unless they are empty."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        added = ((name, value) for name, value in vars(record).items() if name not in STANDARD_FIELDS)
        fields.update((name, value) for name, value in added if value != "")
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)
