"""Which deliveries this thread or task has in hand: what its log lines, its spans and its publishes belong to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol

from sqlqueue.core.lines import line
from sqlqueue.observe import tracing


class Handed(Protocol):
    """What is told of a delivery."""

    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def headers(self) -> dict[str, Any]: ...


_in_hand: ContextVar[Sequence[Handed]] = ContextVar("sqlqueue_in_hand", default=())


class InHand:
    """While it is entered, these deliveries (of one group and partition) are in hand: log records get their place, and
    with OpenTelemetry a consumer span is current.

    Handlers run inside one; a loop over subscribe() may enter one of its own for each delivery.
    """

    __slots__ = ("_deliveries", "_span", "_token")

    def __init__(self, *deliveries: Handed):
        self._deliveries = deliveries

    def __enter__(self) -> None:
        self._token: Token[Sequence[Handed]] = _in_hand.set(self._deliveries)
        self._span = tracing.processing(self._deliveries)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._span is not None:
            self._span.end(error)
        _in_hand.reset(self._token)


class DeliveryFilter(logging.Filter):
    """Adds to every log record: topic, group, partition, offset, attempt and id of the delivery in hand (of a batch the
    first and last offset, and no id), trace_id and span_id; all "" where there is none. `delivery` is all of them in
    one text, "-" where there is none. What a record has already, by `extra`, is kept.

    It belongs on handlers, not on loggers; it refuses no record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields."""
        deliveries = _in_hand.get()
        facts = _place(deliveries) if deliveries else dict.fromkeys(PLACE, "")
        facts["trace_id"], facts["span_id"] = tracing.ids(deliveries)
        told = {name: value for name, value in facts.items() if value != ""}
        facts["delivery"] = line("", **told).partition(" ")[2] if told else "-"
        for name, value in facts.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


PLACE = ("topic", "group", "partition", "offset", "attempt", "id")


def _place(deliveries: Sequence[Handed]) -> dict[str, Any]:
    first = deliveries[0]
    facts = {name: getattr(first, name) for name in PLACE}
    if len(deliveries) > 1:
        facts.update(offset=f"{first.offset}-{deliveries[-1].offset}", id="")
    return facts
