"""Filters of consumers: what does not match is acked without its handler, and counted."""

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from prometheus_client import REGISTRY

from sqlqueue import NewMessage, Retry, asubscribe, get_status, publish, publish_many, replay, subscribe
from sqlqueue.consumers.engine import reader as reader_module
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.core.partition import arrivals
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import groups
from sqlqueue.log import messages as messages_module
from sqlqueue.log.messages import Asked
from sqlqueue.models import Activity, BlockedRange, DeliveryState, Message, Offset, PartitionLease
from sqlqueue.operations.reschedule import republish
from sqlqueue.stats.throughput import add
from sqlqueue.testing import drain
from tests.consuming import QUICK, Consuming, states, watermark
from tests.logs import LOG
from tests.processes import wait_until
from tests.subscribers import consumer
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

EVEN = {"headers.even": True}


@pytest.fixture(autouse=True)
def quick(settings: Any, consuming: Consuming) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}


def numbered(count: int, first: int = 0, **options: Any) -> None:
    """Publish numbers with a header that says whether they are even."""
    publish_many(
        "t",
        [
            NewMessage({"n": n}, key=f"k{n % 3}", id=f"n{n}", headers={"even": n % 2 == 0}, **options)
            for n in range(first, first + count)
        ],
    )


def keep(seen: list[Any]) -> Any:
    return lambda delivery: seen.append(delivery.payload["n"])


def whole_numbers(values: Any) -> list[int]:
    """Return a statement's parameters without names, and without what proves its server."""
    return [value for value in values if isinstance(value, int)]


def filtered() -> float:
    return (
        REGISTRY.get_sample_value("sqlqueue_filtered_total", {"database": "", "topic": "t", "group": "default"}) or 0.0
    )


@pytest.mark.parametrize("ordering", ["key", "partition", "none"])
def test_what_does_not_match_is_acked_and_counted_without_a_row(consuming: Consuming, ordering: str) -> None:
    numbered(20)
    seen: list[int] = []
    before = filtered()
    consuming.consumer("t", keep(seen), where=EVEN, ordering=ordering)
    subscriber = consuming.drain()
    assert sorted(seen) == list(range(0, 20, 2))
    assert filtered() - before == 10
    assert subscriber.settled == 10
    assert watermark("t") == highest_offset(LOG)
    assert states("t") == []
    assert [get_status("t", id=f"n{n}", key=f"k{n % 3}").groups["default"].state for n in (0, 1)] == ["acked", "acked"]  # type: ignore[union-attr]


def test_where_nothing_matches_the_group_is_at_the_end_of_the_log(consuming: Consuming) -> None:

    def at_the_end() -> bool:
        return Offset.objects.filter(offset_acked=highest_offset(LOG)).exists()

    numbered(10)
    consuming.consumer("t", keep([]), where={"key": "none"})
    host = consuming.start()
    wait_until(at_the_end)
    numbered(1, first=10)
    wait_until(at_the_end)
    host.stop()
    assert host.subscriber.settled == 0
    assert states("t") == []


def test_another_groups_filter_is_another_matter(consuming: Consuming) -> None:
    numbered(6)
    seen: dict[str, list[int]] = {"even": [], "small": [], "all": []}
    consuming.consumer("t", keep(seen["even"]), group="even", where=EVEN)
    consuming.consumer("t", keep(seen["small"]), group="small", where={"payload.n__lt": 3}, ordering="partition")
    consuming.consumer("t", keep(seen["all"]), group="all")
    consuming.drain()
    assert {group: sorted(numbers) for group, numbers in seen.items()} == {
        "even": [0, 2, 4],
        "small": [0, 1, 2],
        "all": list(range(6)),
    }


def test_conditions_on_the_payload_as_the_database_gives_it(consuming: Consuming) -> None:
    """Each driver gives JSON in its own way: text as it was stored, text in an order of its own, or values."""
    publish("t", {"n": 1, "total": 99.5, "tags": ["vip"], "name": "Jörg"}, headers={"country": "AT"})
    publish("t", {"n": 2, "total": 100, "tags": ["vip"], "name": 'Jörg "J" \\ / \n'}, headers={"country": "AT"})
    publish("t", {"n": 3, "total": 10**15, "tags": [], "name": "Jörg"}, headers={"country": "AT"})
    publish("t", {"n": 4, "total": 100.0, "tags": ["vip", None], "name": "Jörg"})
    publish("t", {"n": 5, "total": "1000", "tags": "vip", "name": 5}, headers={"country": "FR"})
    publish("t", "text")
    publish("t", b"bytes", headers={"country": "AT"})
    seen: dict[str, list[int]] = {}
    wheres: list[dict[str, Any]] = [
        {"headers.country": ["DE", "AT"], "payload.total__gte": 100},
        {"payload.tags__contains": "vip", "payload.name__startswith": "Jörg"},
        {"payload.name": 'Jörg "J" \\ / \n'},
        {"headers.country__exists": False, "payload.n__exists": True},
        {"payload.total": 100},
    ]
    for number, where in enumerate(wheres):
        consuming.consumer("t", keep(seen.setdefault(str(number), [])), group=str(number), where=where)
    consuming.drain()
    assert list(map(sorted, seen.values())) == [[2, 3], [1, 2, 4], [2], [4], [2, 4]]


@pytest.mark.parametrize("atomic", [False, True])
def test_of_a_batch(consuming: Consuming, atomic: bool) -> None:
    numbered(30)
    seen: list[int] = []
    rows: list[int] = []

    def handle(deliveries: list[Delivery]) -> None:
        seen.extend(delivery.payload["n"] for delivery in deliveries)
        rows.append(DeliveryState.objects.count())

    consuming.consumer("t", handle, where=EVEN, batch=True, batch_size=4, atomic=atomic)
    consuming.drain()
    assert sorted(seen) == list(range(0, 30, 2))
    assert watermark("t") == highest_offset(LOG)
    assert set(rows) == {0}, "the position of an atomic batch passes what lies between"


def test_of_a_pull_loop() -> None:
    numbered(6)
    with subscribe("t", timeout=60, where={"payload.n__gte": 4}) as deliveries:
        each = iter(deliveries)
        seen = []
        for delivery in (next(each), next(each)):
            seen.append(delivery.payload["n"])
            delivery.ack()
    assert sorted(seen) == [4, 5]
    wait_until(lambda: watermark("t") == highest_offset(LOG))


def test_of_an_async_pull_loop() -> None:
    numbered(6)

    async def receive() -> int:
        async with asubscribe("t", timeout=60, where={"payload.n": 5}) as deliveries:
            async for delivery in deliveries:
                await delivery.aack()
                return int(delivery.payload["n"])
        raise AssertionError("nothing came")

    assert asyncio.run(receive()) == 5


def test_of_a_drain_in_a_test(consuming: Consuming) -> None:
    seen: list[int] = []
    consuming.consumer("t", keep(seen), where=EVEN)
    numbered(4)
    numbered(4, first=10, delay=60)
    assert drain() == 2
    assert drain(ahead=61) == 2
    assert sorted(seen) == [0, 2, 10, 12]


def test_a_key_goes_on_in_order_behind_one_that_waits(consuming: Consuming) -> None:
    """Blocked ranges cover what matches and what does not."""
    publish_many("t", [NewMessage({"n": n}, key="a", headers={"even": n % 2 == 0}) for n in range(200)])
    publish_many("t", [NewMessage({"n": n}, key="b", headers={"even": n % 2 == 0}) for n in range(200, 250)])
    seen: list[int] = []
    opened = threading.Event()

    def handle(delivery: Delivery) -> None:
        if delivery.payload["n"] == 0 and not opened.is_set():
            raise Retry(delay=0.05)
        seen.append(delivery.payload["n"])

    consuming.consumer("t", handle, where=EVEN, batch_size=5, max_attempts=None)
    consuming.start()
    wait_until(lambda: len(seen) == 25, message=lambda: f"{seen}")
    assert min(seen) >= 200
    opened.set()
    wait_until(lambda: len(seen) == 125, message=lambda: f"{seen}")
    assert seen[25:] == list(range(0, 200, 2))
    wait_until(lambda: watermark("t") == highest_offset(LOG))
    wait_until(lambda: not DeliveryState.objects.exists())


@pytest.mark.database("mariadb", "mysql", "postgresql")  # SQLite has one writer
def test_beyond_an_open_transaction(consuming: Consuming) -> None:
    """What lies beyond the horizon is left out at once, and its acks wait for the horizon, as others do."""
    seen: list[int] = []
    consuming.consumer("t", keep(seen), where=EVEN)
    before = filtered()
    with OpenTransaction() as slow:
        slow.do(lambda: publish("other", 1))
        numbered(10)
        consuming.start()
        wait_until(lambda: len(seen) == 5)
    wait_until(lambda: watermark("t") >= Message.objects.filter(topic="t").order_by("-offset")[0].offset)
    wait_until(lambda: filtered() - before == 5)
    assert len(seen) == 5


def test_what_a_killed_process_had_claimed_is_left_out_by_its_successor(consuming: Consuming) -> None:
    """Its rows say that it may have been delivered: a filter forgets them, and charges nobody."""
    numbered(6)
    horizon = highest_offset(LOG)
    groups.register(LOG, "default", "t")
    acquire(LOG, "killed", "default", "t", [0], priorities=1, lease_duration=3600, horizon=horizon)
    Offset.objects.update(claimed_to=horizon)
    PartitionLease.objects.update(holder="", valid_until=None)
    seen: list[int] = []
    before = filtered()
    consuming.consumer("t", keep(seen), where=EVEN)
    consuming.drain()
    assert sorted(seen) == [0, 2, 4]
    assert filtered() - before == 3
    assert watermark("t") == horizon
    assert not DeliveryState.objects.exists()


@pytest.mark.once
def test_messages_in_doubt_that_do_not_fit_into_one_read_are_left_out_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [[1, 2, 3, 4, 5], []]
    left_out: list[int] = []
    assigned: Any = SimpleNamespace(
        ref=None,
        budget=SimpleNamespace(weighed=True),
        loadable=1,
        unfiltered_in_doubt=lambda most: asked.pop(0),
        wants=lambda message: False,
    )
    monkeypatch.setattr(arrivals, "load", lambda p, offset, row, message, now: left_out.append(offset))

    def portion(log: Log, asked: Sequence[Asked], server: Any) -> Any:
        return [(dict.fromkeys(one.offsets[:2], ("row", "message")), 2) for one in asked]

    monkeypatch.setattr(reader_module, "load", portion)
    reader_module.Reader.leave_out(SimpleNamespace(log=LOG, server=None), assigned, 0.0)  # type: ignore[arg-type]
    assert left_out == [1, 2, 3, 4, 5]


def test_what_a_killed_process_had_left_out_is_not_loaded_one_by_one(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(60)
    horizon = highest_offset(LOG)
    groups.register(LOG, "default", "t")
    acquire(LOG, "killed", "default", "t", [0], priorities=1, lease_duration=3600, horizon=horizon)
    Offset.objects.update(claimed_to=horizon)
    PartitionLease.objects.update(holder="", valid_until=None)
    loads: list[int] = []
    load = reader_module.load

    def note(log: Log, asked: Sequence[Asked], server: Any) -> Any:
        loads.extend(len(one.offsets) for one in asked)
        return load(log, asked, server)

    monkeypatch.setattr(reader_module, "load", note)
    monkeypatch.setattr(reader_module, "FIRST_READ", 20)
    monkeypatch.setattr(reader_module, "LEFT_OUT_AT_ONCE", 20)
    seen: list[int] = []
    consuming.consumer("t", keep(seen), where={"payload.n": [20, 21]})
    consuming.drain()
    assert sorted(seen) == [20, 21]
    assert sum(loads) == 62, "each once, and what is delivered for its attempt"
    assert len(loads) < 10
    assert watermark("t") == horizon
    assert not DeliveryState.objects.exists()


def test_what_waits_for_a_retry_when_the_filter_becomes_narrower(consuming: Consuming) -> None:
    numbered(4)

    def fail(delivery: Delivery) -> None:
        raise Retry(delay=0.2)

    consuming.consumer("t", fail, max_attempts=None)
    host = consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(retry_count__gte=1, in_flight=0).count() >= 3)
    host.stop()
    seen: list[int] = []
    with_filter = consumer("t", keep(seen), where={"payload.n": 2})
    DeliveryState.objects.update(invisible_until="2020-01-01T00:00Z")
    Subscriber([with_filter]).run(drain=True)
    assert seen == [2]
    assert watermark("t") == highest_offset(LOG)
    assert not DeliveryState.objects.exists()
    assert not Message.objects.exclude(topic="t").exists(), "nothing is a dead letter"


def test_what_lies_between_messages_that_wait_when_the_filter_becomes_wider(consuming: Consuming) -> None:
    """A key's range covers it, and has no memory of what the former filter left out."""
    publish_many("t", [NewMessage({"n": n}, key="a", headers={"even": n % 2 == 0}) for n in range(6)])

    def fail(delivery: Delivery) -> None:
        raise Retry(delay=0.2)

    consuming.consumer("t", fail, where=EVEN, max_attempts=None)
    host = consuming.start()
    wait_until(lambda: BlockedRange.objects.exists())
    host.stop()
    seen: list[int] = []
    DeliveryState.objects.update(invisible_until="2020-01-01T00:00Z")
    Subscriber([consumer("t", keep(seen))]).run(drain=True)
    assert seen == [0, 2, 3, 4], "only 3 lies between messages that wait behind another"
    assert watermark("t") == highest_offset(LOG)


def test_what_is_replayed_rescheduled_or_expired_passes_the_filter_too(consuming: Consuming) -> None:
    numbered(2)
    numbered(2, first=2, expires=60)
    Message.objects.exclude(expires_at=None).update(expires_at="2020-01-01T00:00Z")

    def fail(delivery: Delivery) -> None:
        raise ValueError("no")

    consuming.consumer("t", fail, max_attempts=1)
    consuming.drain()
    seen: list[int] = []
    dead = Message.objects.filter(topic="t_dlq").order_by("original_offset")
    assert [(one.payload["n"], one.last_error == "expired") for one in dead] == [
        (0, False),
        (1, False),
        (2, True),
        (3, True),
    ]
    narrower = consumer("t", keep(seen), where=EVEN)
    assert replay("t", group="default") == 4
    numbered(2, first=4, expires=60)
    Message.objects.exclude(expires_at=None).update(expires_at="2020-01-01T00:00Z")
    Subscriber([narrower]).run(drain=True)
    assert sorted(seen) == [0, 2]
    assert [one.payload["n"] for one in dead.all()] == [4], "what matches has expired, what does not is acked"
    offset = Message.objects.filter(topic="t", message_id="n1").get().offset
    republish("t", "default", [offset])
    Subscriber([narrower]).run(drain=True)
    assert sorted(seen) == [0, 2]


@pytest.mark.parametrize(
    ("where", "needs_payload"),
    [
        ({"headers.rare": True}, False),
        ({"key": "rare"}, False),
        ({"id": ["n150", "n199"]}, False),
        ({"payload.n": [150, 199]}, True),
    ],
)
def test_where_it_leaves_out_nearly_all_only_what_matches_is_read_whole(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any], needs_payload: bool
) -> None:
    monkeypatch.setattr(messages_module, "WHOLE_AT_ONCE", 1)
    rare = [150, 199]
    publish_many(
        "t",
        [
            NewMessage({"n": n}, key="rare" if n in rare else f"k{n % 3}", id=f"n{n}", headers={"rare": n in rare})
            for n in range(300)
        ],
    )
    publish("t", {"n": 300}, key="k0", group="other", headers={"rare": True})
    seen: list[Delivery] = []
    statements: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, *rest: Any) -> Any:
        statements.append((sql.replace("`", "").replace('"', ""), params))
        return execute(sql, params, *rest)

    before = filtered()
    subscriber = Subscriber([consumer("t", seen.append, where=where)], background_tasks=False)
    with connection.execute_wrapper(note):
        subscriber.run(drain=True)
    assert sorted((one.payload["n"], one.id, one.headers["rare"]) for one in seen) == [(n, f"n{n}", True) for n in rare]
    assert filtered() - before == 298
    assert watermark("t") == highest_offset(LOG)
    assert states("t") == []
    reads = [(sql, params) for sql, params in statements if "FROM sqlqueue_message" in sql and "headers" in sql]
    sized = 3  # columns, each with a parameter: the most bytes
    whole = [whole_numbers(params)[sized:] for sql, params in reads if "published_at" in sql]
    by_offset = [whole_numbers(params)[sized:] for sql, params in reads if "offset IN" in sql]
    at_first = [params for params in whole if params not in by_offset and params[-1] > 1]  # 1: whether it is the end
    assert len(at_first) == 1, "before it is known how few match"
    matching = len(rare) + ("headers.rare" in where)  # the other group's matches, too
    assert len(by_offset) == sum(map(len, by_offset)) == matching
    looked = [sql for sql, _ in reads if "published_at" not in sql]
    assert looked
    assert all(("payload" in sql) is needs_payload for sql in looked)


def test_it_reads_several_times_before_it_settles(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out takes no room; and a settle for each read costs more than the reads."""

    def settles(at_once: int, group: str) -> int:
        texts: list[str] = []

        def note(execute: Any, sql: str, *rest: Any) -> Any:
            texts.append(sql.replace("`", "").replace('"', ""))
            return execute(sql, *rest)

        monkeypatch.setattr(reader_module, "READS_AT_ONCE", at_once)
        subscriber = Subscriber(
            [consumer("t", keep([]), group=group, where={"key": "none"}, batch_size=50)], background_tasks=False
        )
        subscriber.start()
        try:
            with connection.execute_wrapper(note):
                while not subscriber.idle or subscriber.anything_due():
                    subscriber.run_once()
        finally:
            subscriber.close()
        return sum("UPDATE sqlqueue_offset" in text for text in texts)

    numbered(1_000)
    assert settles(reader_module.READS_AT_ONCE, "often") < settles(1, "seldom") / 2


def test_the_minutes_activity_has_it(consuming: Consuming) -> None:
    numbered(10)
    consuming.consumer("t", keep([]), where=EVEN)
    subscriber = consuming.drain()
    counts = subscriber.settler.outcome_counter.take()
    if counts:  # otherwise the stats recorder has written them
        add(LOG, counts)
    row = Activity.objects.get(topic="t", acked__gt=0)
    assert (row.acked, row.filtered) == (5, 5)
