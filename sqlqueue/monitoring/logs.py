"""Writes one log line for each noteworthy event, by receivers of the signals; and formats lines as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from django.dispatch import Signal

from sqlqueue import signals
from sqlqueue.core.logfmt import lines_below, logfmt

logger = logging.getLogger("sqlqueue")
STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "delivery"}


def partitions_text(partitions: list[int]) -> str:
    """Return numbers as ranges: 0-3,7."""
    ranges: list[list[int]] = []
    for number in sorted(set(partitions)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1] if error.strip() else ""


def _started(*, subscriber: str, subscriptions: list[tuple[str, str]], **_: Any) -> None:
    group_topics = ",".join(f"{group}/{topic}" for group, topic in subscriptions)
    logger.info(logfmt("subscriber_started", subscriber=subscriber, subscriptions=group_topics))


def _lost(*, why: str, **fields: Any) -> None:
    logger.warning(logfmt("lease_lost", **_fields(fields), meaning=why))


def _failed(*, error: str, **fields: Any) -> None:
    logger.warning(logfmt("delivery_failed", **_fields(fields), error=_last_line(error)))
    if logger.isEnabledFor(logging.DEBUG):
        # The line's text may have a % of its own, so the traceback cannot be an argument of it.
        logger.debug("%s\n%s", logfmt("delivery_traceback", **_fields(fields)), lines_below(error))


def _ticked(*, schedule: str, topic: str, policy: str, count: int, missed: bool, **_: Any) -> None:
    if missed:
        logger.warning(logfmt("ticks_missed", schedule=schedule, topic=topic, policy=policy, published=count))


def _line(write: Callable[[str], None], event: str, **own: Any) -> Callable[..., None]:
    """Return a receiver that logs the fields of a signal. own: what becomes of some of them, by their names."""

    def log(**fields: Any) -> None:
        shown = {**_fields(fields), **{name: change(fields.get(name)) for name, change in own.items()}}
        write(logfmt(event, **shown))

    return log


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    hidden = ("signal", "sender") if fields["database"] else ("signal", "sender", "database")
    return {name: value for name, value in fields.items() if name not in hidden}


RECEIVERS: dict[Signal, Callable[..., None]] = {
    signals.subscriber_started: _started,
    signals.subscriber_stopped: _line(logger.info, "subscriber_stopped"),
    signals.lease_acquired: _line(logger.info, "lease_acquired", partitions=partitions_text),
    signals.lease_released: _line(logger.info, "lease_released", partitions=partitions_text),
    signals.lease_lost: _lost,
    signals.delivery_failed: _failed,
    signals.dead_lettered: _line(logger.error, "dead_lettered", error=_last_line),
    signals.process_died: _line(logger.error, "process_died"),
    signals.messages_collected: _line(logger.info, "messages_collected"),
    signals.results_collected: _line(logger.info, "results_collected"),
    signals.group_away: _line(
        logger.warning, "group_away", meaning=lambda _: "no process serves it, and collection waits for it"
    ),
    signals.message_refused: _line(logger.error, "scheduled_message_refused"),
    signals.ticks_published: _ticked,
    signals.tick_refused: _line(logger.error, "tick_refused"),
    signals.database_unreachable: _line(logger.warning, "database_unreachable"),
}
UID = "sqlqueue.logs"  # of the receivers


def connect() -> None:
    """Subscribe to the signals. The project's LOGGING, which has been applied by now, disables loggers that exist
    already unless it says otherwise, and in the supervisor's processes this one does."""
    logger.disabled = False
    for signal, receiver in RECEIVERS.items():
        signal.connect(receiver, weak=False, dispatch_uid=UID)


def show(verbosity: int) -> None:
    """Log to standard error if the project has configured no logging for `sqlqueue`. verbosity: 0 for not at all, 2
    with DEBUG."""
    if verbosity == 0 or logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s pid=%(process)d %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)


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
