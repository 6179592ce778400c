"""Log lines, one per noteworthy fact, that subscribe to the signals, like everybody."""

from __future__ import annotations

import logging
from typing import Any

from sqlqueue import signals
from sqlqueue.core.lines import line, printable

logger = logging.getLogger("sqlqueue")


def partitions_text(partitions: list[int]) -> str:
    """Return numbers as ranges: 0-3,7."""
    ranges: list[list[int]] = []
    for number in sorted(partitions):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1] if error.strip() else ""


def _started(*, subscriber: str, subscriptions: list[tuple[str, str]], **_: Any) -> None:
    places = ",".join(f"{group}/{topic}" for group, topic in subscriptions)
    logger.info(line("subscriber_started", subscriber=subscriber, subscriptions=places))


def _stopped(*, subscriber: str, **_: Any) -> None:
    logger.info(line("subscriber_stopped", subscriber=subscriber))


def _acquired(*, partitions: list[int], **facts: Any) -> None:
    logger.info(line("lease_acquired", **_own(facts), partitions=partitions_text(partitions)))


def _released(*, partitions: list[int], **facts: Any) -> None:
    logger.info(line("lease_released", **_own(facts), partitions=partitions_text(partitions)))


def _lost(**facts: Any) -> None:
    logger.warning(line("lease_lost", **_own(facts)))


def _failed(*, error: str, **facts: Any) -> None:
    logger.warning(line("delivery_failed", **_own(facts), error=_last_line(error)))
    # The line's text may have a % of its own, so the traceback cannot be an argument of it.
    logger.debug("%s\n%s", line("delivery_traceback", **_own(facts)), printable(error, keep="\n"))


def _dead(*, error: str, **facts: Any) -> None:
    logger.error(line("dead_lettered", **_own(facts), error=_last_line(error)))


def _collected(**facts: Any) -> None:
    logger.info(line("messages_collected", **_own(facts)))


def _away(**facts: Any) -> None:
    logger.warning(line("group_away", **_own(facts), meaning="nobody serves it, and collection waits for it"))


def _refused(**facts: Any) -> None:
    logger.error(line("scheduled_message_refused", **_own(facts)))


def _unreachable(*, error: Exception, **facts: Any) -> None:
    logger.warning(line("database_unreachable", **_own(facts), error=error))


def _own(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in ("signal", "sender")}


RECEIVERS = (
    (signals.subscriber_started, _started),
    (signals.subscriber_stopped, _stopped),
    (signals.lease_acquired, _acquired),
    (signals.lease_released, _released),
    (signals.lease_lost, _lost),
    (signals.delivery_failed, _failed),
    (signals.dead_lettered, _dead),
    (signals.messages_collected, _collected),
    (signals.group_away, _away),
    (signals.message_refused, _refused),
    (signals.database_unreachable, _unreachable),
)


def connect() -> None:
    """Subscribe to the signals."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, weak=False, dispatch_uid=f"sqlqueue.logs.{receiver.__name__}")


def show(verbosity: int) -> None:
    """Let the lines be seen by somebody who has configured no logging for `sqlqueue`: on standard error."""
    if verbosity == 0 or logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s pid=%(process)d %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
