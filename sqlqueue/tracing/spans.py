"""OpenTelemetry spans, by its semantic conventions for messaging, and the trace context that messages carry in their
headers (`traceparent`, `tracestate`). Without OpenTelemetry, or before a tracer provider is set, headers are carried
unchanged, at no measurable cost.

A publish is a PRODUCER span whose context travels in the messages' headers, unless the caller has given a traceparent:
then the span links to it. A delivery is a CONSUMER span, child of the context in its headers; a batch is one span that
links to the context of each of its messages. Payloads and keys are not recorded. An error of a sampler or a span
processor is logged, and fails no publish and no delivery.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sqlqueue.core.logfmt import logfmt
from sqlqueue.exceptions import Postpone

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace

    installed = True
except ModuleNotFoundError as missing:
    if not str(missing.name).startswith("opentelemetry"):
        raise
    installed = False

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider

T = TypeVar("T")

logger = logging.getLogger("sqlqueue")

SCHEMA = "https://opentelemetry.io/schemas/1.27.0"
SYSTEM = "sqlqueue"
# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, parent id, flags.
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")

PROVIDER_INTERVAL = 1.0  # seconds between two looks for a provider: each costs microseconds

look_at = 0.0 if installed else math.inf  # monotonic seconds: until then there is no provider


@cache
def _tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer(SYSTEM, schema_url=SCHEMA)


def _begin(span: Callable[[Tracer, Any], T], about: Any) -> T | None:
    """Begin a span with the tracer of the application's provider; None without one. Notices a new provider within a
    second."""
    global look_at
    try:
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            look_at = time.monotonic() + PROVIDER_INTERVAL
            return None
        return span(_tracer(provider), about)
    except Exception as error:
        _failed(error)
        return None


def ids(deliveries: Sequence[Any]) -> tuple[str, str]:
    """Return trace id and span id in hex: the current span's, or those in the first delivery's headers; "" without
    any."""
    if installed and (current := trace.get_current_span().get_span_context()).is_valid:
        return f"{current.trace_id:032x}", f"{current.span_id:016x}"
    given = deliveries[0].headers.get("traceparent") if deliveries else None
    found = TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    return (found[1], found[2]) if found else ("", "")


def bound(work: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that does the work in the current trace context."""
    if not installed:
        return work
    context = contexts.get_current()

    def in_context() -> Any:
        token = contexts.attach(context)
        try:
            return work()
        finally:
            contexts.detach(token)

    return in_context


class Sending(AbstractContextManager["Sending"]):
    """The span of a publish. While it is entered, `headers` adds its context to messages' headers, and `sent` records
    their id or count."""

    def __init__(self, tracer: Tracer, topic: str):
        self.span = tracer.start_span(
            f"publish {topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "publish",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
            },
        )
        self._carried: dict[str, Any] = {}
        propagate.inject(self._carried, trace.set_span_in_context(self.span))

    def headers(self, given: Any) -> Any:
        """Return a message's headers with the span's context, unless they have one."""
        if given is None:
            return self._carried
        if not isinstance(given, dict):
            return given  # refused later, where headers are checked
        if "traceparent" not in given:
            return {**self._carried, **given}
        brought = _span_context(given)
        if brought is not None:
            self.span.add_link(brought)
        return given

    def sent(self, id: str | None, count: int | None = None) -> None:
        """Record the message's id, or the number of messages."""
        if id is not None:
            self.span.set_attribute("messaging.message.id", id)
        if count is not None:
            self.span.set_attribute("messaging.batch.message_count", count)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _end(self.span, error)


def sending(topic: str) -> Sending | None:
    """Begin the producer span of a publish, which the caller enters; None without a tracer."""
    return None if time.monotonic() < look_at else _begin(Sending, topic)


class Processing:
    """The span of a handler, current from its creation to `end`, in the same thread or task."""

    __slots__ = ("_token", "span")

    def __init__(self, tracer: Tracer, deliveries: Sequence[Any]):
        first, alone = deliveries[0], len(deliveries) == 1
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": first.topic,
            "messaging.destination.partition.id": str(first.partition),
            "messaging.consumer.group.name": first.group,
        }
        links: list[Link] | None = None
        context: Context | None = None
        if alone:
            attributes["messaging.message.id"] = first.id
            attributes["messaging.sqlqueue.message.offset"] = first.offset
            attributes["messaging.sqlqueue.message.attempt"] = first.attempt
            context = _extracted(first.headers)
        else:
            attributes["messaging.batch.message_count"] = len(deliveries)
            brought = [one for delivery in deliveries if (one := _span_context(delivery.headers)) is not None]
            links = [trace.Link(one) for one in {(one.trace_id, one.span_id): one for one in brought}.values()]
        name = f"process {first.topic}"
        self.span = tracer.start_span(name, context, trace.SpanKind.CONSUMER, attributes, links)
        self._token = contexts.attach(trace.set_span_in_context(self.span, context))

    def end(self, error: BaseException | None) -> None:
        """End the span; an exception of the handler other than Postpone is its error."""
        contexts.detach(self._token)
        _end(self.span, None if isinstance(error, Postpone) else error)


def processing(deliveries: Sequence[Any]) -> Processing | None:
    """Begin the consumer span of a handler, which the caller ends; None without a tracer."""
    return None if time.monotonic() < look_at else _begin(Processing, deliveries)


def _failed(error: Exception) -> None:
    logger.error(logfmt("tracing_failed", error=error), exc_info=error)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None and span.is_recording():
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__qualname__))
    try:
        span.end()
    except Exception as failure:
        _failed(failure)


def _extracted(headers: dict[str, Any]) -> Context | None:
    """Return the context in headers; propagators read only strings."""
    carrier = {name: value for name, value in headers.items() if isinstance(value, str)}
    return propagate.extract(carrier) if carrier else None


def _span_context(headers: dict[str, Any]) -> trace.SpanContext | None:
    context = _extracted(headers)
    found = trace.get_current_span(context).get_span_context() if context is not None else None
    return found if found is not None and found.is_valid else None
