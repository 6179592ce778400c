"""The current deliveries of a thread or an async task, for its log lines, spans and publishes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from time import monotonic
from types import TracebackType
from typing import Any

from sqlqueue.core.logfmt import logfmt
from sqlqueue.tracing import spans

# Of `Delivery`, which stands above this package.
_current: ContextVar[Sequence[Any]] = ContextVar("sqlqueue_current", default=())


class DeliveryContext:
    """Makes deliveries (of one group and partition) the current ones of the thread or task: log records name them, and
    with OpenTelemetry a consumer span is current.

    Handlers run inside one; a loop over subscribe() may enter one for each delivery.
    """

    __slots__ = ("_deliveries", "_span", "_token")

    def __init__(self, *deliveries: Any):
        self._deliveries = deliveries

    def __enter__(self) -> None:
        self._token: Token[Sequence[Any]] = _current.set(self._deliveries)
        self._span = spans.processing(self._deliveries)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._span is not None:
            self._span.end(error)
        _current.reset(self._token)


def in_context(deliveries: Sequence[Any], do: Callable[..., Any], *args: Any) -> Any:
    """Call a function inside a DeliveryContext, at less of its cost; return what it returns."""
    if monotonic() >= spans.look_at:
        with DeliveryContext(*deliveries):
            return do(*args)
    token = _current.set(deliveries)
    try:
        return do(*args)
    finally:
        _current.reset(token)


class DeliveryFilter(logging.Filter):
    """Adds to every log record: topic, group, partition, offset, attempt and id of the current delivery (of a batch the
    first and last offset, and no id), trace_id and span_id; all "" without one. `delivery` is all of them in one text,
    "-" without one. Attributes that a record has already, by `extra`, are kept.

    Attach it to logging handlers, not to loggers; it drops no record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes; return True."""
        deliveries = _current.get()
        fields = _fields(deliveries) if deliveries else dict.fromkeys(FIELDS, "")
        fields["trace_id"], fields["span_id"] = spans.ids(deliveries)
        present = {name: value for name, value in fields.items() if value != ""}
        fields["delivery"] = logfmt("", **present).partition(" ")[2] if present else "-"
        for name, value in fields.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


FIELDS = ("topic", "group", "partition", "offset", "attempt", "id")


def _fields(deliveries: Sequence[Any]) -> dict[str, Any]:
    first = deliveries[0]
    fields = {name: getattr(first, name) for name in FIELDS}
    if len(deliveries) > 1:
        fields.update(offset=f"{first.offset}-{deliveries[-1].offset}", id="")
    return fields
