"""A trace goes on from publish to handler, and to what the handler publishes: seen by OpenTelemetry's own SDK."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from sqlqueue import (
    NewMessage,
    Postpone,
    Reject,
    Retry,
    apublish,
    apublish_many,
    asubscribe,
    publish,
    publish_many,
    publish_on_commit,
    replay,
    subscribe,
)
from sqlqueue.models import Message
from sqlqueue.tracing import spans
from sqlqueue.tracing.delivery_context import DeliveryContext
from tests.asynchronous.loops import in_loop
from tests.consuming import Consuming
from tests.processes import environment, wait_until

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GIVEN_TRACE, GIVEN_SPAN = int(GIVEN[3:35], 16), int(GIVEN[36:52], 16)
pytestmark = pytest.mark.django_db(transaction=True)


def publish_and_hang_up(topic: str, payload: Any) -> None:
    """Publish in a thread of its own."""
    publish(topic, payload)
    connections.close_all()


class Spans:
    """What an application with OpenTelemetry has exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def of(self, name: str) -> list[ReadableSpan]:
        found = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def the(self, name: str) -> ReadableSpan:
        """Return the one span of this name, which a consumer's thread may just be ending."""
        wait_until(lambda: self.of(name), 30, lambda: f"{name}: {self.exporter.get_finished_spans()}")
        (found,) = self.of(name)
        return found


def use(monkeypatch: pytest.MonkeyPatch, **options: Any) -> TracerProvider:
    """Let the application have this tracer provider, until the test ends."""
    provider = TracerProvider(**options)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(spans, "look_at", 0.0)
    return provider


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """An application that has set OpenTelemetry up."""
    exported = Spans()
    use(monkeypatch).add_span_processor(SimpleSpanProcessor(exported.exporter))
    return exported


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that has OpenTelemetry's API installed, and has not set it up."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(spans, "look_at", 0.0)


def carried(message: Message | dict[str, Any]) -> tuple[int, int]:
    """Return the trace id and span id in a message's headers."""
    headers = message if isinstance(message, dict) else message.headers
    version, trace_id, span_id, _ = headers["traceparent"].split("-")
    assert version == "00"
    return int(trace_id, 16), int(span_id, 16)


def place(span: ReadableSpan) -> tuple[int, int]:
    assert span.context
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return (span.parent.trace_id, span.parent.span_id) if span.parent else None


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


@pytest.fixture
def request_span(traced: Spans) -> Iterator[tuple[int, int]]:
    """A span of the application's own, in which the test runs."""
    with trace.get_tracer("application").start_as_current_span("request") as span:
        yield span.get_span_context().trace_id, span.get_span_context().span_id


class TestPublishing:
    def test_the_producers_span_travels_in_the_headers(self, traced: Spans, request_span: tuple[int, int]) -> None:
        publish("orders", {"n": 1}, key="a", id="x")
        span = traced.the("publish orders")
        assert span.kind is SpanKind.PRODUCER
        assert dict(span.attributes or {}) == {
            "messaging.system": "sqlqueue",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": "orders",
            "messaging.message.id": "x",
        }
        assert parent(span) == request_span
        message = Message.objects.get()
        assert carried(message) == place(span)
        assert set(message.headers) == {"traceparent"}

    def test_the_callers_headers_are_kept_beside_it(self, traced: Spans) -> None:
        publish("orders", 1, headers={"tenant": "t1"})
        message = Message.objects.get()
        assert message.headers == {"tenant": "t1", "traceparent": message.headers["traceparent"]}
        assert carried(message) == place(traced.the("publish orders"))

    def test_a_traceparent_of_the_callers_is_carried_and_linked_to(self, traced: Spans) -> None:
        headers = {"traceparent": GIVEN, "tracestate": "vendor=1"}
        publish("orders", 1, headers=headers)
        assert Message.objects.get().headers == headers
        assert links(traced.the("publish orders")) == [(GIVEN_TRACE, GIVEN_SPAN)]

    def test_many_messages_share_one_span(self, traced: Spans, request_span: tuple[int, int]) -> None:
        publish_many("orders", [1, NewMessage(2, headers={"h": 1}), NewMessage(3, headers={"traceparent": GIVEN})])
        span = traced.the("publish orders")
        assert (span.attributes or {})["messaging.batch.message_count"] == 3
        assert parent(span) == request_span
        assert links(span) == [(GIVEN_TRACE, GIVEN_SPAN)]
        places = {message.payload: carried(message) for message in Message.objects.all()}
        assert places == {1: place(span), 2: place(span), 3: (GIVEN_TRACE, GIVEN_SPAN)}
        assert Message.objects.filter(headers__h=1).count() == 1

    def test_what_is_published_on_commit_belongs_to_where_that_was_said(self, traced: Spans) -> None:
        by = trace.get_tracer("application")
        with transaction.atomic():
            with by.start_as_current_span("inner") as inner:
                publish_on_commit("orders", 1)
            assert not traced.of("publish orders")
        span = traced.the("publish orders")
        assert parent(span) == (inner.get_span_context().trace_id, inner.get_span_context().span_id)
        assert carried(Message.objects.get()) == place(span)

    def test_async_twins_carry_the_context_of_their_task(self, traced: Spans) -> None:
        by = trace.get_tracer("application")

        async def place_order(name: str) -> None:
            with by.start_as_current_span(name):
                await asyncio.sleep(0)
                await apublish("orders", name)
                await apublish_many("orders", [name])

        async def main() -> None:
            await asyncio.gather(place_order("ann"), place_order("bob"))

        in_loop(main())
        spans_by_name = {name: place(traced.the(name)) for name in ("ann", "bob")}
        for message in Message.objects.all():
            assert carried(message)[0] == spans_by_name[message.payload][0]
        parents = sorted(parent(span) for span in traced.of("publish orders"))
        assert parents == sorted([*spans_by_name.values()] * 2)

    def test_a_publish_that_is_refused_is_an_error(self, traced: Spans) -> None:
        with pytest.raises(Exception, match="not JSON"):
            publish("orders", {1, 2})
        span = traced.the("publish orders")
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "InvalidMessage"

    @pytest.mark.parametrize("headers", [["h"], "h", 0, {1: "h"}], ids=repr)
    def test_headers_that_are_none_are_refused_as_ever(self, traced: Spans, headers: object) -> None:
        with pytest.raises(Exception, match="headers must be a dict"):
            publish("orders", 1, headers=headers)  # type: ignore[arg-type]


class TestHandling:
    @pytest.mark.parametrize("atomic", [False, True])
    def test_a_handlers_span_continues_the_publishs(self, traced: Spans, consuming: Consuming, atomic: bool) -> None:
        consuming.consumer("orders", lambda delivery: publish("invoices", 1), group="billing", atomic=atomic)
        published = publish("orders", 1, id="x")
        consuming.drain()
        span = traced.the("process orders")
        assert span.kind is SpanKind.CONSUMER
        message = Message.objects.get(topic="orders")
        assert dict(span.attributes or {}) == {
            "messaging.system": "sqlqueue",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "orders",
            "messaging.destination.partition.id": str(message.partition),
            "messaging.consumer.group.name": "billing",
            "messaging.message.id": "x",
            "messaging.sqlqueue.message.offset": published.offset,
            "messaging.sqlqueue.message.attempt": 1,
        }
        assert span.status.status_code is StatusCode.UNSET
        assert parent(span) == place(traced.the("publish orders"))
        second = traced.the("publish invoices")
        assert parent(second) == place(span)
        assert carried(Message.objects.get(topic="invoices")) == place(second)
        assert len({place(one)[0] for one in traced.exporter.get_finished_spans()}) == 1

    def test_one_delivery_after_another_has_its_own_trace(self, traced: Spans, consuming: Consuming) -> None:
        consuming.consumer("orders", lambda delivery: None)
        for number in range(3):
            publish("orders", number, key="same")
        consuming.drain()
        wait_until(lambda: len(traced.of("process orders")) == 3)
        assert [parent(span) for span in traced.of("process orders")] == [
            place(span) for span in traced.of("publish orders")
        ]

    @pytest.mark.parametrize("kind", ["plain", "atomic", "async"])
    def test_a_batch_is_one_span_with_links(self, traced: Spans, consuming: Consuming, kind: str) -> None:
        counts: list[int] = []

        def handle(deliveries) -> None:
            counts.append(len(deliveries))
            publish("sums", len(deliveries))

        async def handle_async(deliveries) -> None:
            counts.append(len(deliveries))
            await asyncio.to_thread(publish_and_hang_up, "sums", len(deliveries))

        consuming.consumer(
            "orders", handle_async if kind == "async" else handle, batch=True, atomic=kind == "atomic", ordering="none"
        )
        publish("orders", 1, key="same")
        publish("orders", 2, key="same", headers={"traceparent": GIVEN})
        publish_many("orders", [NewMessage(number, key="same") for number in (3, 4)])
        consuming.drain()
        assert counts == [4]
        span = traced.the("process orders")
        first, _, many = traced.of("publish orders")
        assert links(span) == [place(first), (GIVEN_TRACE, GIVEN_SPAN), place(many)]
        assert (span.attributes or {})["messaging.batch.message_count"] == 4
        assert parent(span) is None
        assert parent(traced.the("publish sums")) == place(span)

    def test_async_handlers_side_by_side_do_not_mix(self, traced: Spans, consuming: Consuming) -> None:
        meeting = asyncio.Barrier(3) if sys.version_info >= (3, 11) else None

        @consuming.consumer("orders", ordering="none")
        async def handle(delivery) -> None:
            if meeting is not None:
                await asyncio.wait_for(meeting.wait(), 30)
            await asyncio.to_thread(publish_and_hang_up, "invoices", delivery.id)

        for number in range(3):
            publish("orders", number, id=f"x{number}")
        consuming.drain()
        wait_until(lambda: len(traced.of("process orders")) == 3)
        ids = {place(span): (span.attributes or {})["messaging.message.id"] for span in traced.of("process orders")}
        seconds = {place(span): parent(span) for span in traced.of("publish invoices")}
        told = {message.payload: ids[seconds[carried(message)]] for message in Message.objects.filter(topic="invoices")}
        assert told == {"x0": "x0", "x1": "x1", "x2": "x2"}

    @pytest.mark.parametrize(
        ("raised", "said"),
        [(ValueError("no"), "ValueError"), (Retry("no", delay=60), "Retry"), (Reject("no"), "Reject")],
    )
    def test_what_a_handler_raises_is_an_error(
        self, traced: Spans, consuming: Consuming, raised: Exception, said: str
    ) -> None:
        def handle(delivery) -> None:
            raise raised

        consuming.consumer("orders", handle, backoff=60)
        publish("orders", 1)
        consuming.drain()
        span = traced.the("process orders")
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == said

    def test_a_postponed_delivery_is_no_error(self, traced: Spans, consuming: Consuming) -> None:
        def handle(delivery) -> None:
            raise Postpone("later", delay=60)

        consuming.consumer("orders", handle)
        publish("orders", 1)
        consuming.drain()
        assert traced.the("process orders").status.status_code is StatusCode.UNSET

    @pytest.mark.parametrize("headers", [{"traceparent": "nonsense"}, {"traceparent": 7}, {"traceparent": [GIVEN]}])
    def test_a_traceparent_that_is_none_begins_a_trace(
        self, traced: Spans, consuming: Consuming, headers: dict[str, Any]
    ) -> None:
        seen: list[dict[str, Any]] = []
        consuming.consumer("orders", lambda delivery: seen.append(delivery.headers))
        publish("orders", 1, headers=headers)
        consuming.drain()
        assert seen == [headers]
        assert parent(traced.the("process orders")) is None

    def test_what_is_scheduled_keeps_its_trace(self, traced: Spans, consuming: Consuming) -> None:
        consuming.consumer("orders", lambda delivery: None)
        publish("orders", 1, delay=timedelta(milliseconds=10))
        consuming.start()
        assert parent(traced.the("process orders")) == place(traced.the("publish orders"))

    def test_what_is_replayed_keeps_its_trace(self, traced: Spans, consuming: Consuming) -> None:
        @consuming.consumer("orders", max_attempts=1)
        def handle(delivery) -> None:
            if not delivery.id.startswith("replay:"):
                raise ValueError

        publish("orders", 1)
        consuming.drain()
        assert replay("orders") == 1
        consuming.drain()
        wait_until(lambda: len(traced.of("process orders")) == 2)
        published = place(traced.the("publish orders"))
        assert [parent(span) for span in traced.of("process orders")] == [published, published]

    def test_a_pull_loop_may_set_the_current_delivery(self, traced: Spans, consuming: Consuming) -> None:
        publish("orders", 1)
        with subscribe("orders", timeout=30) as deliveries:
            for delivery in deliveries:
                with DeliveryContext(delivery):
                    publish("invoices", 1)
                delivery.ack()
                break
        assert parent(traced.the("process orders")) == place(traced.the("publish orders"))
        assert parent(traced.the("publish invoices")) == place(traced.the("process orders"))

    def test_an_async_pull_loop_may_too(self, traced: Spans, consuming: Consuming) -> None:
        async def main() -> None:
            await apublish("orders", 1)
            async with asubscribe("orders", timeout=30) as deliveries:
                async for delivery in deliveries:
                    with DeliveryContext(delivery):
                        await apublish("invoices", 1)
                    await delivery.aack()
                    break

        in_loop(main())
        assert parent(traced.the("process orders")) == place(traced.the("publish orders"))
        assert parent(traced.the("publish invoices")) == place(traced.the("process orders"))


class BrokenSampler(Sampler):
    """Fails where a span begins."""

    def should_sample(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("broken")

    def get_description(self) -> str:
        return "broken"


class BrokenProcessor(SpanProcessor):
    """Fails where a span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken")


@pytest.mark.parametrize(("sampler", "processor"), [(BrokenSampler(), None), (ALWAYS_ON, BrokenProcessor())])
def test_tracing_that_fails_fails_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    consuming: Consuming,
    sampler: Sampler,
    processor: SpanProcessor | None,
) -> None:
    provider = use(monkeypatch, sampler=sampler)
    if processor is not None:
        provider.add_span_processor(processor)
    attempts: list[int] = []
    consuming.consumer("orders", lambda delivery: attempts.append(delivery.attempt))
    publish("orders", 1)
    publish_many("orders", [2])
    consuming.drain()
    assert attempts == [1, 1]
    assert "event=tracing_failed error=RuntimeError('broken')" in caplog.text


class TestUntraced:
    @pytest.mark.usefixtures("untraced")
    def test_headers_are_carried_as_they_are(self, consuming: Consuming) -> None:
        seen: list[dict[str, Any]] = []
        consuming.consumer("orders", lambda delivery: seen.append(delivery.headers))
        publish("orders", 1, key="a")
        publish("orders", 2, key="a", headers={"traceparent": GIVEN})
        consuming.drain()
        assert seen == [{}, {"traceparent": GIVEN}]

    @pytest.mark.usefixtures("untraced")
    def test_a_provider_that_is_set_later_is_noticed(self, traced_later: Spans) -> None:
        wait_until(lambda: publish("orders", 1) and traced_later.of("publish orders"), 30)

    @pytest.fixture
    def traced_later(self, untraced: None, monkeypatch: pytest.MonkeyPatch) -> Spans:
        publish("orders", 0)
        assert spans.look_at > 0
        exported = Spans()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exported.exporter))
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        return exported

    def test_without_the_package_everything_else_works(self, tmp_path) -> None:
        """In a process in which OpenTelemetry cannot be imported."""
        script = f"""
import sys
sys.modules["opentelemetry"] = None
import django
django.setup()
import json, logging
from sqlqueue import consumer, publish, publish_many, publish_on_commit
from sqlqueue.models import Message
from sqlqueue.tracing import spans
from sqlqueue.tracing.delivery_context import DeliveryFilter
from sqlqueue.testing import drain
assert not spans.installed
found = []

@consumer("orders", group="untraced")
def handle(delivery):
    record = logging.makeLogRecord({{}})
    DeliveryFilter().filter(record)
    found.append((delivery.payload, delivery.headers, record.trace_id))

publish("orders", 1, key="a", headers={{"traceparent": {GIVEN!r}}})
publish_many("orders", [2])
publish_on_commit("orders", 3)
drain(groups=["untraced"])
print(json.dumps(sorted(found)))
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment(SQLQUEUE="{}"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [
            [1, {"traceparent": GIVEN}, GIVEN[3:35]],
            [2, {}, ""],
            [3, {}, ""],
        ]
