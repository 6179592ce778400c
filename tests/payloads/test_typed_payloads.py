"""Typed payloads from publish to handler: what fits is an instance, what does not is refused, or a dead letter."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.checks import run_checks
from jsonschema import Draft202012Validator

from sqlqueue import (
    ConfigurationError,
    InvalidMessage,
    NewMessage,
    PayloadMismatch,
    Postpone,
    Reject,
    consumer,
    publish,
    publish_many,
    publish_on_commit,
    replay,
    subscribe,
)
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.exceptions import Unknown
from sqlqueue.models import DeliveryState, Message, dead_letter_topic
from sqlqueue.payloads import topic_types
from sqlqueue.payloads.topic_types import PayloadReader
from sqlqueue.testing import published
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.management.running import run
from tests.payloads import shapes
from tests.payloads.shapes import Line, OrderPlaced, OrderPlaced2

NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
ORDER = OrderPlaced(7, NOON, [Line("a", 2, Decimal("9.90"))], ("new",))
PLAIN = {
    "number": 7,
    "placed": "2026-01-02T12:00:00Z",
    "lines": [{"sku": "a", "count": 2, "price": "9.90"}],
    "tags": ["new"],
}
WRONG = {**PLAIN, "lines": [{"sku": "a", "count": "many"}]}
SHAPES = [
    (OrderPlaced, OrderPlaced(7, NOON, [Line("a", 2)])),
    (shapes.OrderDict, {"number": 7, "placed": NOON, "lines": [{"sku": "a", "count": 2}]}),
    (shapes.AttrsOrder, shapes.AttrsOrder(7, NOON, [shapes.AttrsLine("a", 2)])),
    (shapes.ModelOrder, shapes.ModelOrder(number=7, placed=NOON, lines=[shapes.ModelLine(sku="a", count=2)])),
    (shapes.Mixed, shapes.Mixed(7, NOON, [shapes.ModelLine(sku="a", count=2)])),
    (shapes.StructOrder, shapes.StructOrder(7, NOON, [shapes.StructLine("a", 2)])),
]
EACH_SHAPE = pytest.mark.parametrize(("kind", "order"), SHAPES, ids=lambda value: getattr(value, "__name__", ""))


async def later(old: Any) -> Any:
    return old


def typed(settings: Any, kind: Any = OrderPlaced, **options: Any) -> None:
    """Give topic `orders` this payload type; topic `any` has none."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "TOPICS": {"orders": {"payload_type": kind, **options}, "any": {}}}


def publish_wrongly(payload: Any, **options: Any) -> None:
    """Publish to `orders` as a publisher does that knows no type."""
    publish("any", payload, **options)
    Message.objects.filter(topic="any").update(topic="orders")


def dead_letters() -> list[str]:
    letters = Message.objects.filter(topic=dead_letter_topic("orders")).order_by("offset")
    return [letter.last_error for letter in letters]


@EACH_SHAPE
def test_an_instance_arrives_as_it_was_published(consuming: Consuming, settings, kind: Any, order: Any) -> None:
    typed(settings, kind)
    seen: list[Any] = []
    consuming.consumer("orders", lambda delivery: seen.append(delivery.payload))
    publish("orders", order)
    publish_many("orders", [order, NewMessage(order, delay=0)])
    consuming.drain()
    assert seen == [order] * 3
    assert published("orders")[0].payload["placed"] == "2026-01-02T12:00:00Z"


@EACH_SHAPE
def test_a_plain_value_that_fits_arrives_as_an_instance(consuming: Consuming, settings, kind: Any, order: Any) -> None:
    typed(settings, f"{kind.__module__}.{kind.__name__}")
    seen: list[Any] = []
    consuming.consumer("orders", lambda delivery: seen.append(delivery.payload))
    publish("orders", {"number": 7, "placed": "2026-01-02T12:00:00Z", "lines": [{"sku": "a", "count": 2}], "more": 1})
    assert published("orders")[0].payload["more"] == 1  # nothing is dropped from what was given
    consuming.drain()
    assert [kind is shapes.OrderDict or type(each) is kind for each in seen] == [True]
    if kind is not shapes.OrderDict:
        assert seen == [order]


@EACH_SHAPE
@pytest.mark.django_db
def test_what_does_not_fit_is_refused_with_the_fields_path(settings, kind: Any, order: Any) -> None:
    typed(settings, kind)
    before = Message.objects.count()
    for refused in (
        lambda: publish("orders", WRONG),
        lambda: publish_many("orders", [order, WRONG]),
        lambda: publish_on_commit("orders", WRONG),
    ):
        with pytest.raises(InvalidMessage, match=r"'orders': payload does not fit .*lines\[0\].*"):
            refused()
    with pytest.raises(InvalidMessage, match="does not fit"):
        publish("orders", None)
    assert Message.objects.count() == before


@pytest.mark.django_db
def test_a_models_aliases_are_written_as_they_are_read(settings) -> None:
    typed(settings, shapes.AliasedModel)
    publish("orders", shapes.AliasedModel(orderNumber=7))
    publish("orders", {"orderNumber": 7})
    assert [message.payload for message in published("orders")] == [{"orderNumber": 7}] * 2
    assert "orderNumber" in json.loads(run("queueschema", "orders").out)["properties"]


@pytest.mark.django_db
def test_an_instance_whose_fields_are_wrong_is_refused(settings) -> None:
    typed(settings)
    for order, reason in (
        (OrderPlaced("7", NOON), r"Expected `int`, got `str` - at `payload.number`"),  # type: ignore[arg-type]
        (OrderPlaced(7, NOON, [Line("a", None)]), r"at `payload.lines\[0\].count`"),  # type: ignore[arg-type]
        (OrderPlaced(7, NOON, [object()]), "payload is not JSON: Object of type object"),  # type: ignore[list-item]
        ({**PLAIN, "number": 13}, "its own code raised LookupError: no order has this number"),
        ({**PLAIN, "number": float("nan")}, "payload is not JSON"),
        ({**PLAIN, "lines": "\ud800"}, "not valid Unicode"),
    ):
        with pytest.raises(InvalidMessage, match=reason):
            publish("orders", order)


@pytest.mark.django_db
def test_an_instance_on_a_topic_without_a_type_is_refused_with_the_remedy(settings) -> None:
    typed(settings)
    with pytest.raises(InvalidMessage, match="instances need the topic's 'payload_type'"):
        publish("any", ORDER)


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_what_an_older_publisher_wrote_wrongly_is_a_dead_letter_at_once(
    consuming: Consuming, settings, atomic: bool, batch: bool
) -> None:
    typed(settings)
    seen: list[Any] = []

    @consuming.consumer("orders", atomic=atomic, batch=batch, backoff=0)
    def place(given: Any) -> None:
        seen.extend([each.payload.number for each in given] if batch else [given.payload.number])

    for number in (1, "two", 3):
        publish_wrongly({**PLAIN, "number": number}, key="a")
    consuming.drain()
    assert seen == [1, 3]
    assert dead_letters() == ["payload does not fit OrderPlaced: Expected `int`, got `str` - at `payload.number`"]
    assert Message.objects.get(topic=dead_letter_topic("orders")).failure_count == 1


@pytest.mark.parametrize("batch", [False, True])
def test_so_it_is_with_async_handlers(consuming: Consuming, settings, batch: bool) -> None:
    typed(settings)
    seen: list[Any] = []

    @consuming.consumer("orders", batch=batch, backoff=0)
    async def place(given: Any) -> None:
        seen.extend([each.payload.number for each in given] if batch else [given.payload.number])

    for number in (1, "two", 3):
        publish_wrongly({**PLAIN, "number": number}, key="a")
    consuming.drain()
    assert seen == [1, 3]
    assert len(dead_letters()) == 1


@pytest.mark.parametrize("handler", ["plain", "atomic", "async"])
def test_nothing_of_its_batch_overtakes_what_is_tried_again(consuming: Consuming, settings, handler: str) -> None:
    typed(settings, None, payload_version=2)
    for number in (1, "two", 3, "four"):
        publish("orders", {**PLAIN, "number": number}, key="a")
    typed(settings)
    seen: list[int] = []

    def place(deliveries: Any) -> None:
        seen.extend(delivery.payload.number for delivery in deliveries)

    async def place_async(deliveries: Any) -> None:
        place(deliveries)

    function = place_async if handler == "async" else place
    consuming.consumer("orders", function, batch=True, atomic=handler == "atomic", backoff=60)
    consuming.drain()
    assert seen == [1]
    assert not dead_letters()
    assert DeliveryState.objects.filter(topic="orders", retry_count=0, acked=False).count() == 1


def test_a_type_that_is_gone_fails_the_attempts_of_a_batch(consuming: Consuming, settings) -> None:
    typed(settings)
    consuming.consumer("orders", lambda deliveries: None, batch=True, backoff=60)
    for _ in range(2):
        publish("orders", PLAIN)
    typed(settings, "tests.payloads.shapes.Gone")
    consuming.drain()
    states = DeliveryState.objects.filter(topic="orders", acked=False)
    assert ["cannot be imported" in state.last_error for state in states] == [True, True]


def test_a_batch_of_nothing_that_fits_calls_no_handler(consuming: Consuming, settings) -> None:
    typed(settings)
    consuming.consumer("orders", lambda deliveries: 1 / 0, batch=True)
    for _ in range(3):
        publish_wrongly(WRONG, key="a")
    consuming.drain()
    assert len(dead_letters()) == 3


def test_the_pull_loop_goes_on_past_what_does_not_fit(consuming: Consuming, settings) -> None:
    typed(settings)
    for number in (1, "two", 3):
        publish_wrongly({**PLAIN, "number": number}, key="a")
    seen = []
    with subscribe("orders", timeout=30) as deliveries:
        for delivery in deliveries:
            seen.append(delivery.payload)
            delivery.ack()
            if len(seen) == 2:
                break
    assert [order.number for order in seen] == [1, 3]
    assert len(dead_letters()) == 1


def test_a_payload_is_read_when_the_handler_asks_for_it(consuming: Consuming, settings) -> None:
    typed(settings)
    seen: list[str] = []

    @consuming.consumer("orders")
    def place(delivery: Any) -> None:
        seen.append(delivery.id)

    publish_wrongly(WRONG, id="a")
    consuming.drain()
    assert seen == ["a"]
    assert not dead_letters()


def test_a_consumer_may_have_a_type_of_its_own_or_none(consuming: Consuming, settings) -> None:
    typed(settings)
    seen: dict[str, Any] = {}
    consuming.consumer(
        "orders", lambda delivery: seen.update(own=delivery.payload), group="own", payload_type=OrderPlaced2
    )
    consuming.consumer("orders", lambda delivery: seen.update(plain=delivery.payload), group="plain", payload_type=Any)
    consuming.consumer("any", lambda delivery: seen.update(any=delivery.payload), payload_type=OrderPlaced)
    publish("orders", ORDER)
    publish("any", PLAIN)
    consuming.drain()
    assert type(seen["own"]) is OrderPlaced2
    assert seen["plain"] == PLAIN
    assert seen["any"] == ORDER


class TestVersions:
    def from_v1(self, old: Any) -> Any:
        return {**old, "number": int(old["number"])}

    def test_older_ones_are_brought_up_to_date(self, consuming: Consuming, settings) -> None:
        typed(settings, payload_version=3)
        seen: list[Any] = []
        steps = {1: self.from_v1, 2: lambda old: {**old, "tags": ["was 2"]}}
        consuming.consumer("orders", lambda delivery: seen.append(delivery.payload), upcast=steps)
        publish_wrongly({**PLAIN, "number": "5"})  # version 1 has no header
        Message.objects.filter(topic="orders").update(topic="orders")
        publish("orders", ORDER, headers={"source": "shop"})
        stored = [message.row.headers for message in published("orders")]
        assert stored == [None, {"source": "shop", "sqlqueue-version": 3}]
        consuming.drain()
        assert seen == [OrderPlaced(5, NOON, ORDER.lines, ("was 2",)), ORDER]

    def test_without_a_type_too(self, consuming: Consuming, settings) -> None:
        typed(settings, None, payload_version=2)
        seen: list[Any] = []
        consuming.consumer("orders", lambda delivery: seen.append(delivery.payload), upcast={1: lambda old: [old]})
        publish_wrongly(1)
        publish("orders", 2)
        consuming.drain()
        assert seen == [[1], 2]

    def test_what_an_upcast_returns_is_a_value_and_no_json_text(self, consuming: Consuming, settings) -> None:
        typed(settings, str, payload_version=2)
        seen: list[Any] = []
        consuming.consumer("orders", lambda delivery: seen.append(delivery.payload), upcast={1: lambda old: old["say"]})
        publish_wrongly({"say": "hello"})
        publish_wrongly({"say": '"quoted"'})
        publish("orders", "of today")
        consuming.drain()
        assert seen == ["hello", '"quoted"', "of today"]

    def test_an_upcast_may_postpone_in_the_pull_loop_too(self, consuming: Consuming, settings) -> None:
        typed(settings, None, payload_version=2)

        def later(old: Any) -> Any:
            raise Postpone("not now", delay=60)

        publish_wrongly(1)
        publish("orders", 2)
        with subscribe("orders", timeout=1, upcast={1: later}) as deliveries:
            seen = []
            for delivery in deliveries:
                seen.append(delivery.payload)
                delivery.ack()
        assert seen == [2]
        (state,) = DeliveryState.objects.filter(topic="orders", acked=False)
        assert (state.last_error, state.retry_count) == ("not now", 0)

    def test_what_cannot_be_brought_up_to_date_is_a_dead_letter(self, consuming: Consuming, settings) -> None:
        typed(settings, payload_version=3)
        consuming.consumer("orders", lambda delivery: delivery.payload, upcast={2: lambda old: old["nothing"]})
        publish_wrongly(PLAIN)
        typed(settings, payload_version=2)
        publish("orders", PLAIN)
        typed(settings, payload_version=3)
        consuming.drain()
        assert sorted(dead_letters()) == [
            "payload has version 1, and upcast begins at 2: name one for 1",
            "payload of version 2: upcast from 2 raised KeyError: 'nothing'",
        ]

    def test_an_upcast_that_returns_what_has_not_run_makes_a_dead_letter(self, consuming: Consuming, settings) -> None:
        typed(settings, None, payload_version=2)
        publish_wrongly(PLAIN)
        consuming.consumer("orders", lambda delivery: delivery.payload, upcast={1: lambda old: later(old)})
        consuming.drain()
        (error,) = dead_letters()
        assert "upcast from 1 returned a coroutine of later, and none of its code has run" in error

    def test_a_newer_one_that_does_not_fit_waits_uncharged_for_a_process_that_can_read_it(
        self, consuming: Consuming, settings
    ) -> None:
        typed(settings, None, payload_version=2)
        publish("orders", WRONG)
        publish("orders", PLAIN)
        typed(settings)
        seen: list[Any] = []
        consuming.consumer("orders", lambda delivery: seen.append(delivery.payload), max_attempts=1)
        consuming.drain()
        assert seen == [ORDER]
        assert not dead_letters()
        (state,) = DeliveryState.objects.filter(topic="orders", acked=False)
        assert "version 2 is newer than this consumer's 1" in state.last_error
        assert state.retry_count == 0

    def test_a_newer_one_that_does_not_fit_is_a_dead_letter_after_UNKNOWN_FOR(
        self, consuming: Consuming, settings
    ) -> None:
        typed(settings, None, payload_version=2)
        publish("orders", WRONG)
        typed(settings)
        settings.SQLQUEUE = {**settings.SQLQUEUE, "UNKNOWN_FOR": 0}
        consuming.consumer("orders", lambda delivery: delivery.payload)
        consuming.drain()
        assert ["version 2 is newer" in error for error in dead_letters()] == [True]

    def test_a_replayed_dead_letter_keeps_its_version(self, consuming: Consuming, settings) -> None:
        typed(settings, payload_version=2)
        seen: list[Any] = []

        @consuming.consumer("orders", upcast={1: lambda old: {**old, "tags": ["brought up"]}})
        def place(delivery: Any) -> None:
            if delivery.id in ("first", "second"):
                raise Reject("not now")
            seen.append((delivery.headers, delivery.payload.tags))

        publish_wrongly(PLAIN, id="first")
        publish("orders", PLAIN, id="second")
        consuming.drain()
        assert replay("orders", group="default") == 2
        consuming.drain()
        assert sorted(tags for _, tags in seen) == [("brought up",), ("new",)]
        assert [headers for headers, _ in seen] == [{}, {}]

    def test_a_header_that_names_no_version_is_a_dead_letter(self) -> None:
        for wrong in ("2", 0, True, None, 1.5):
            with pytest.raises(PayloadMismatch, match="'sqlqueue-version' must be a whole number from 1"):
                PayloadReader("t", OrderPlaced).read(json.dumps(PLAIN), json.dumps({"sqlqueue-version": wrong}))
        with pytest.raises(Unknown):
            PayloadReader("t", OrderPlaced).read("[]", '{"sqlqueue-version": 2}')

    @pytest.mark.django_db
    @pytest.mark.parametrize("name", ["sqlqueue-version", "SQLQUEUE-x", "sqlqueue-"])
    def test_callers_may_not_use_the_queues_headers(self, settings, name: str) -> None:
        typed(settings)
        for topic in ("orders", "any"):
            with pytest.raises(InvalidMessage, match="which is for the queue's own"):
                publish(topic, PLAIN, headers={name: 1})

    def test_a_handler_can_pass_on_what_it_got(self, consuming: Consuming, settings) -> None:
        typed(settings, payload_version=2)

        @consuming.consumer("orders")
        def place(delivery: Any) -> None:
            publish("any", delivery.id, headers=delivery.headers)

        publish("orders", PLAIN, id="a", headers={"source": "shop"})
        consuming.drain()
        assert [(each.payload, each.row.headers) for each in published("any")] == [("a", {"source": "shop"})]

    def test_a_file_of_queuetail_can_be_published_again(self, consuming: Consuming, settings, tmp_path) -> None:
        typed(settings, payload_version=2)
        publish("orders", PLAIN, headers={"a": 1})
        lines = tmp_path / "lines"
        said = run("queuetail", "orders", "--from", "earliest", "--no-follow", "--json").out.strip()
        parts = json.loads(said)
        lines.write_text(json.dumps({**parts, "id": "again"}))
        assert run("queuepublish", "orders", "--messages", lines).code == 0
        assert published("orders")[1].row.headers == {"a": 1, "sqlqueue-version": 2}
        lines.write_text(json.dumps({**parts, "id": "old", "headers": {"sqlqueue-version": 1}}))
        refused = run("queuepublish", "orders", "--messages", lines)
        assert (refused.code, "for the queue's own" in refused.err) == (1, True)

    @pytest.mark.parametrize(
        ("upcast", "reason"),
        [
            ({1: str}, "upcast must have every version up to 2: 2 is missing"),
            ({1: str, 2: str, 3: str}, "upcast must end before the present version, which is 3.* to 4"),
            ({True: str}, "upcast must name plain functions for whole numbers from 1, not <class 'str'>"),
            ({1: str, 2: later}, "upcast must name plain functions"),
            ({2: "str"}, "upcast must name plain functions for whole numbers from 1, not 'str' for 2"),
            ({}, "upcast must be a dict"),
        ],
    )
    def test_upcasts_that_cannot_work_are_refused(
        self, consuming: Consuming, settings, upcast: Any, reason: str
    ) -> None:
        typed(settings, payload_version=3)
        with pytest.raises(ConfigurationError, match=f"consumer of 'orders': {reason}"):
            consumer("orders", upcast=upcast)
        with pytest.raises(ConfigurationError, match=reason), subscribe("orders", upcast=upcast):
            pass


@dataclass
class Forward:
    missing: "NotThere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("tests.payloads.shapes.Nothing", "cannot be imported"),
        ("tests.payloads.shapes.NOTHING.More", "cannot be imported"),
        (Forward, "name 'NotThere' is not defined"),
        (shapes.Unknown, "Unknown'> is not supported"),
        (shapes.WithUnknown, "Unknown'> is not supported"),
        (shapes.ModelDataclass, "its validators would not be run"),
    ],
)
def test_a_type_that_cannot_be_used_is_refused_where_it_enters(
    consuming: Consuming, settings, wrong: Any, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"consumer of 'orders': .*{reason}"):
        consumer("orders", payload_type=wrong)
    typed(settings, wrong)
    (error,) = run_checks(tags=["sqlqueue"])
    assert error.id == "sqlqueue.E025"
    assert "topic 'orders'" in error.msg
    assert "TOPICS" in error.hint


def test_without_msgspec_it_says_what_to_install(monkeypatch, settings) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    monkeypatch.delitem(sys.modules, "sqlqueue.payloads.payload_type", raising=False)
    topic_types._built.cache_clear()
    typed(settings)
    (error,) = run_checks(tags=["sqlqueue"])
    assert "pip install sqlqueue[typed]" in error.msg
    with pytest.raises(ConfigurationError, match=r"pip install sqlqueue\[typed\]"):
        consumer("orders", payload_type=OrderPlaced)


@EACH_SHAPE
def test_the_schema_says_what_publish_takes(settings, kind: Any, order: Any) -> None:
    typed(settings, kind)
    schema = json.loads(run("queueschema", "orders").out)
    validator = Draft202012Validator(schema)
    Draft202012Validator.check_schema(schema)
    good = {"number": 7, "placed": "2026-01-02T12:00:00Z", "lines": [{"sku": "a", "count": 2}]}
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "lines": [{"sku": "a", "count": "many"}]})
    assert not validator.is_valid({"number": 7})
    assert (schema["title"], schema["x-payload-version"]) == ("orders", 1)


class TestQueueschema:
    def test_it_prints_every_topic_with_a_type(self, consuming: Consuming, settings) -> None:
        typed(settings)
        consuming.consumer("parcels", lambda delivery: None, payload_type=shapes.AttrsOrder)
        assert set(json.loads(run("queueschema").out)) == {"orders", "parcels"}

    @pytest.mark.parametrize(
        ("words", "reason"),
        [(("order",), "Did you mean 'orders'"), (("any",), "'any' has no payload type")],
    )
    def test_a_topic_without_one_is_refused(self, consuming: Consuming, settings, words, reason: str) -> None:
        typed(settings)
        refused = run("queueschema", *words)
        assert refused.code == 1
        assert reason.lower() in refused.err.lower()
        typed(settings, None)
        assert "no topic has a payload type" in run("queueschema").err


def test_a_payload_that_takes_long_to_read_holds_up_no_other_thread() -> None:
    asked, answers = threading.Event(), threading.Event()

    def slowly(payload: str, headers: str, body: object) -> str:
        asked.set()
        assert answers.wait(60)
        return payload

    def delivery(payload: str, payloads: object = None) -> Delivery:
        message = SimpleNamespace(payload=payload, headers=None, body=None)
        return Delivery(LOG, SimpleNamespace(message=message), payloads)

    with ThreadPoolExecutor() as pool:
        slow = pool.submit(lambda: delivery("1", SimpleNamespace(read=slowly)).payload)
        try:
            assert asked.wait(10)
            assert pool.submit(lambda: delivery("2").payload).result(timeout=10) == 2
        finally:
            answers.set()
        assert slow.result(timeout=10) == "1"
