"""Log records as JSON, one object a line: for whoever collects logs."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "delivery"}


class JSONLines(logging.Formatter):
    """Formats a record as time (UTC), level, logger, process, message, exception, and what filters (DeliveryFilter) and
    `extra` have added and is not empty."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        told.update((name, value) for name, value in vars(record).items() if name not in OWN and value != "")
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)
