"""Log records of a handler name its delivery, as text for people and as JSON for machines."""

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from sqlqueue import publish, subscribe
from sqlqueue.monitoring.logs import JSONLines
from sqlqueue.tracing.delivery_context import DeliveryContext, DeliveryFilter
from tests.consuming import Consuming

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FIELDS = ("topic", "group", "partition", "offset", "attempt", "id", "trace_id")
logger = logging.getLogger("shop")
pytestmark = pytest.mark.django_db(transaction=True)


class Kept(logging.Handler):
    """Keeps the records that reach it, after its filters."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(DeliveryFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def told(self) -> list[tuple[object, ...]]:
        return [tuple(getattr(record, name) for name in FIELDS) for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_handlers_records_name_their_delivery(kept: Kept, consuming: Consuming, atomic: bool) -> None:
    @consuming.consumer("orders", group="billing", atomic=atomic, backoff=0)
    def handle(delivery) -> None:
        logger.info("working")
        if delivery.attempt == 1:
            raise ValueError

    published = publish("orders", 1, key="a", id="x", headers={"traceparent": TRACEPARENT})
    consuming.drain()
    partition = kept.records[0].partition
    expected = ("orders", "billing", partition, published.offset)
    assert kept.told() == [(*expected, 1, "x", TRACEPARENT[3:35]), (*expected, 2, "x", TRACEPARENT[3:35])]
    assert kept.records[0].delivery == (
        f"topic=orders group=billing partition={partition} offset={published.offset} attempt=1 id=x"
        f" trace_id={TRACEPARENT[3:35]} span_id={TRACEPARENT[36:52]}"
    )
    logger.info("elsewhere")
    assert kept.told()[-1] == ("",) * len(FIELDS)
    assert kept.records[-1].delivery == "-"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batchs_records_have_its_first_and_last_offset(kept: Kept, consuming: Consuming, is_async: bool) -> None:
    def handle(deliveries) -> None:
        logger.info("working")

    async def handle_async(deliveries) -> None:
        handle(deliveries)

    consuming.consumer("orders", handle_async if is_async else handle, batch=True)
    offsets = [publish("orders", number, key="a").offset for number in range(3)]
    consuming.drain()
    ((topic, group, _, offset, attempt, id, _),) = kept.told()
    assert (topic, group, offset, attempt, id) == ("orders", "default", f"{offsets[0]}-{offsets[-1]}", 1, "")


def test_async_handlers_side_by_side_do_not_mix(kept: Kept, consuming: Consuming) -> None:
    begun: list[str] = []

    @consuming.consumer("orders", ordering="none")
    async def handle(delivery) -> None:
        begun.append(delivery.id)
        while len(begun) < 3:
            await asyncio.sleep(0.001)
        logger.info("%s", delivery.id)

    for number in range(3):
        publish("orders", number, id=f"x{number}")
    consuming.drain()
    assert sorted((record.getMessage(), record.id) for record in kept.records) == [(f"x{n}", f"x{n}") for n in range(3)]


def test_threads_side_by_side_do_not_mix(kept: Kept, consuming: Consuming) -> None:
    meeting = threading.Barrier(3, timeout=30)

    @consuming.consumer("orders", ordering="none")
    def handle(delivery) -> None:
        meeting.wait()
        logger.info("%s", delivery.id)

    for number in range(3):
        publish("orders", number, id=f"x{number}")
    consuming.drain()
    assert sorted((record.getMessage(), record.id) for record in kept.records) == [(f"x{n}", f"x{n}") for n in range(3)]


def test_a_pull_loop_may_set_the_current_delivery(kept: Kept, consuming: Consuming) -> None:
    publish("orders", 1, id="x")
    with subscribe("orders", timeout=30) as deliveries:
        for delivery in deliveries:
            with DeliveryContext(delivery):
                logger.info("working")
            delivery.ack()
            break
    assert [record.id for record in kept.records] == ["x"]


def test_what_a_record_has_already_is_kept(kept: Kept, consuming: Consuming) -> None:
    consuming.consumer("orders", lambda delivery: logger.info("working", extra={"topic": "of its own"}))
    publish("orders", 1)
    consuming.drain()
    assert kept.records[0].topic == "of its own"


def test_json_lines_have_the_delivery_and_the_exception(consuming: Consuming) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(DeliveryFilter())
    handler.setFormatter(JSONLines())
    logger.addHandler(handler)

    @consuming.consumer("orders")
    def handle(delivery) -> None:
        try:
            raise ValueError("über")
        except ValueError:
            logger.exception("no %s", "luck", extra={"carrier": {"UA"}})

    try:
        published = publish("orders", {"secret": "payload"}, id="x")
        consuming.drain()
        logger.warning("elsewhere")
    finally:
        logger.removeHandler(handler)
    inside, outside = [json.loads(text) for text in written.getvalue().splitlines()]
    assert inside.pop("exception").endswith("ValueError: über")
    assert inside.pop("time").endswith("+00:00")
    for name in ("process", "partition"):
        assert isinstance(inside.pop(name), int)
    assert inside == {
        "level": "ERROR",
        "logger": "shop",
        "message": "no luck",
        "carrier": "{'UA'}",
        "topic": "orders",
        "group": "default",
        "offset": published.offset,
        "attempt": 1,
        "id": "x",
    }
    assert set(outside) == {"time", "level", "logger", "process", "message"}
