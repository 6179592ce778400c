"""Trace context, carried in a message's headers (`traceparent`, `tracestate`) from publish to handler.

Without OpenTelemetry, or before it has been given a tracer provider, headers are carried as they are, and nothing here
costs anything worth measuring. With it, spans.py makes the spans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue.observe import spans
    from sqlqueue.observe.in_hand import Handed
else:
    try:
        from sqlqueue.observe import spans
    except ModuleNotFoundError as missing:
        if not str(missing.name).startswith("opentelemetry"):
            raise
        spans = None

# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, parent id, flags.
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def sending(topic: str) -> spans.Sending | None:
    """Return a producer span for a publish, which is to be entered; None if nobody traces."""
    return None if spans is None else spans.sending(topic)


def processing(deliveries: Sequence[Handed]) -> spans.Processing | None:
    """Return a consumer span for deliveries, which has begun and is to be ended; None if nobody traces."""
    return None if spans is None else spans.processing(deliveries)


def bound(work: Callable[[], Any]) -> Callable[[], Any]:
    """Return what does the work within the trace of this moment, later."""
    return work if spans is None else spans.bound(work)


def ids(deliveries: Sequence[Handed]) -> tuple[str, str]:
    """Return the trace id and span id of what runs now: the current span's, or those that the first delivery in hand
    has brought; "" if there are none."""
    current = None if spans is None else spans.current_ids()
    if current is not None:
        return current
    given = deliveries[0].headers.get("traceparent") if deliveries else None
    found = TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    return (found[1], found[2]) if found else ("", "")
