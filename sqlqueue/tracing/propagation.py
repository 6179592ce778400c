"""Carries trace context in a message's headers (`traceparent`, `tracestate`) from publish to handler.

Without OpenTelemetry, or before a tracer provider is set, headers are carried unchanged, at no measurable cost. With
it, the module `spans` makes the spans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue.tracing import spans as spans
    from sqlqueue.tracing.delivery_context import DeliveryInfo
else:
    try:
        from sqlqueue.tracing import spans
    except ModuleNotFoundError as missing:
        if not str(missing.name).startswith("opentelemetry"):
            raise
        spans = None

# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, parent id, flags.
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def _nothing(topic: str) -> spans.Sending | None:
    return None


# Returns a producer span for a publish, which the caller enters; None without a tracer.
sending: Callable[[str], spans.Sending | None] = _nothing if spans is None else spans.sending


def processing(deliveries: Sequence[DeliveryInfo]) -> spans.Processing | None:
    """Begin a consumer span for deliveries, which the caller ends; return None without a tracer."""
    return None if spans is None else spans.processing(deliveries)


def bound(work: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that does the work in the current trace context."""
    return work if spans is None else spans.bound(work)


def ids(deliveries: Sequence[DeliveryInfo]) -> tuple[str, str]:
    """Return trace id and span id: the current span's, or those in the first delivery's headers; "" without any."""
    current = None if spans is None else spans.current_ids()
    if current is not None:
        return current
    given = deliveries[0].headers.get("traceparent") if deliveries else None
    found = TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    return (found[1], found[2]) if found else ("", "")
