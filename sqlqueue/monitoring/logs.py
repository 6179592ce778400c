"""Writes one log line for each noteworthy event; its receivers are connected to the signals."""

from __future__ import annotations

import logging
from typing import Any

from sqlqueue import signals
from sqlqueue.core.logfmt import lines_below, logfmt

logger = logging.getLogger("sqlqueue")


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


def _stopped(*, subscriber: str, **_: Any) -> None:
    logger.info(logfmt("subscriber_stopped", subscriber=subscriber))


def _acquired(*, partitions: list[int], **fields: Any) -> None:
    logger.info(logfmt("lease_acquired", **_fields(fields), partitions=partitions_text(partitions)))


def _released(*, partitions: list[int], **fields: Any) -> None:
    logger.info(logfmt("lease_released", **_fields(fields), partitions=partitions_text(partitions)))


def _lost(*, why: str, **fields: Any) -> None:
    logger.warning(logfmt("lease_lost", **_fields(fields), meaning=why))


def _failed(*, error: str, **fields: Any) -> None:
    logger.warning(logfmt("delivery_failed", **_fields(fields), error=_last_line(error)))
    if logger.isEnabledFor(logging.DEBUG):
        # The line's text may have a % of its own, so the traceback cannot be an argument of it.
        logger.debug("%s\n%s", logfmt("delivery_traceback", **_fields(fields)), lines_below(error))


def _dead(*, error: str, **fields: Any) -> None:
    logger.error(logfmt("dead_lettered", **_fields(fields), error=_last_line(error)))


def _died(**fields: Any) -> None:
    logger.error(logfmt("process_died", **_fields(fields)))


def _collected(**fields: Any) -> None:
    logger.info(logfmt("messages_collected", **_fields(fields)))


def _results_collected(**fields: Any) -> None:
    logger.info(logfmt("results_collected", **_fields(fields)))


def _away(**fields: Any) -> None:
    logger.warning(logfmt("group_away", **_fields(fields), meaning="no process serves it, and collection waits for it"))


def _refused(**fields: Any) -> None:
    logger.error(logfmt("scheduled_message_refused", **_fields(fields)))


def _ticked(*, schedule: str, topic: str, policy: str, count: int, missed: bool, **_: Any) -> None:
    if missed:
        logger.warning(logfmt("ticks_missed", schedule=schedule, topic=topic, policy=policy, published=count))


def _tick_refused(**fields: Any) -> None:
    logger.error(logfmt("tick_refused", **_fields(fields)))


def _unreachable(*, error: Exception, **fields: Any) -> None:
    logger.warning(logfmt("database_unreachable", **_fields(fields), error=error))


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    hidden = ("signal", "sender") if fields["database"] else ("signal", "sender", "database")
    return {name: value for name, value in fields.items() if name not in hidden}


RECEIVERS = (
    (signals.subscriber_started, _started),
    (signals.subscriber_stopped, _stopped),
    (signals.lease_acquired, _acquired),
    (signals.lease_released, _released),
    (signals.lease_lost, _lost),
    (signals.delivery_failed, _failed),
    (signals.dead_lettered, _dead),
    (signals.process_died, _died),
    (signals.messages_collected, _collected),
    (signals.results_collected, _results_collected),
    (signals.group_away, _away),
    (signals.message_refused, _refused),
    (signals.ticks_published, _ticked),
    (signals.tick_refused, _tick_refused),
    (signals.database_unreachable, _unreachable),
)


def connect() -> None:
    """Subscribe to the signals. The project's LOGGING, which has been applied by now, disables loggers that exist
    already unless it says otherwise, and in the supervisor's processes this one does."""
    logger.disabled = False
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, weak=False, dispatch_uid=f"sqlqueue.logs.{receiver.__name__}")


def show(verbosity: int) -> None:
    """Log to standard error if the project has configured no logging for `sqlqueue`. verbosity: 0 for not at all, 2
    with DEBUG."""
    if verbosity == 0 or logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s pid=%(process)d %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
