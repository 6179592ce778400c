"""Writes one log line for each noteworthy event; its receivers are connected to the signals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
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


def _started(*, subscriptions: list[tuple[str, str]], **fields: Any) -> None:
    group_topics = ",".join(f"{group}/{topic}" for group, topic in subscriptions)
    logger.info(logfmt("subscriber_started", **_own(fields), subscriptions=group_topics))


def _failed(*, error: str, **fields: Any) -> None:
    logger.warning(logfmt("delivery_failed", **_own(fields), error=_last_line(error)))
    if logger.isEnabledFor(logging.DEBUG):
        # The line's text may have a % of its own, so the traceback cannot be an argument of it.
        logger.debug("%s\n%s", logfmt("delivery_traceback", **_own(fields)), lines_below(error))


def _dead(*, error: str, **fields: Any) -> None:
    logger.error(logfmt("dead_lettered", **_own(fields), error=_last_line(error)))


def _died(*, database: str, **fields: Any) -> None:
    served = {"database": database} if database else {}
    logger.error(logfmt("process_died", **_own(fields), **served))


def _ticked(*, schedule: str, topic: str, policy: str, count: int, missed: bool, **_: Any) -> None:
    if missed:
        logger.warning(logfmt("ticks_missed", schedule=schedule, topic=topic, policy=policy, published=count))


def _line(level: int, event: str, meaning: str = "") -> Callable[..., None]:
    """Return a receiver that writes the fields of a signal."""

    def write(**fields: Any) -> None:
        own = {name: TEXTS[name](value) if name in TEXTS else value for name, value in _own(fields).items()}
        if "why" in own:
            own["meaning"] = own.pop("why")
        logger.log(level, logfmt(event, **own, **({"meaning": meaning} if meaning else {})))

    return write


def _own(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("signal", "sender")}


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1] if error.strip() else ""


TEXTS: Mapping[str, Callable[[Any], str]] = {"partitions": partitions_text}
AWAY = "no process serves it, and collection waits for it"
RECEIVERS = (
    (signals.subscriber_started, _started),
    (signals.subscriber_stopped, _line(logging.INFO, "subscriber_stopped")),
    (signals.lease_acquired, _line(logging.INFO, "lease_acquired")),
    (signals.lease_released, _line(logging.INFO, "lease_released")),
    (signals.lease_lost, _line(logging.WARNING, "lease_lost")),
    (signals.delivery_failed, _failed),
    (signals.dead_lettered, _dead),
    (signals.process_died, _died),
    (signals.messages_collected, _line(logging.INFO, "messages_collected")),
    (signals.results_collected, _line(logging.INFO, "results_collected")),
    (signals.group_away, _line(logging.WARNING, "group_away", AWAY)),
    (signals.message_refused, _line(logging.ERROR, "scheduled_message_refused")),
    (signals.ticks_published, _ticked),
    (signals.tick_refused, _line(logging.ERROR, "tick_refused")),
    (signals.database_unreachable, _line(logging.WARNING, "database_unreachable")),
)


def connect() -> None:
    """Subscribe to the signals. The project's LOGGING, which has been applied by now, disables loggers that exist
    already unless it says otherwise, and in the supervisor's processes this one does."""
    logger.disabled = False
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, weak=False, dispatch_uid="sqlqueue.logs")


def show(verbosity: int) -> None:
    """Log to standard error if the project has configured no logging for `sqlqueue`. verbosity: 0 for not at all, 2
    with DEBUG."""
    if verbosity == 0 or logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s pid=%(process)d %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
