"""A pull loop over several databases: the deliveries of all, each with its database."""

import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from sqlqueue import NewMessage, asubscribe, publish, publish_many, subscribe
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.core.keys import database_of
from sqlqueue.database.log import Log
from sqlqueue.log.status import anything_due
from sqlqueue.models import PartitionLease, SubscriberHeartbeat
from tests.databases.aliases import BOTH, A, B

pytestmark = pytest.mark.usefixtures("databases")

NAMES = [f"key-{number}" for number in range(60)]
KEYS = {database: next(name for name in NAMES if database_of(name, BOTH) == database) for database in BOTH}


def publish_both(count: int = 5) -> None:
    publish_many("t", [NewMessage(n, key=KEYS[database]) for database in BOTH for n in range(count)])


def all_is_done(group: str = "default") -> bool:
    return not any(anything_due(Log.of(alias), group, "t", "key") for alias in (A, B))


def nothing_is_held() -> bool:
    leases = (PartitionLease.objects.using(alias).exclude(holder="").exists() for alias in (A, B))
    return not any(leases) and not any(SubscriberHeartbeat.objects.using(alias).exists() for alias in (A, B))


def test_messages_of_all_databases_come_in_their_order_and_name_it() -> None:
    publish_both()
    seen: dict[str, list[Any]] = {A: [], B: []}
    with subscribe("t", timeout=20) as deliveries:
        for delivery in deliveries:
            assert delivery.key == KEYS[delivery.database]
            seen[delivery.database].append(delivery.payload)
            delivery.ack()
            if sum(map(len, seen.values())) == 10:
                deliveries.close()
    assert seen == {A: [*range(5)], B: [*range(5)]}
    assert all_is_done()
    assert nothing_is_held()


def test_a_topic_on_another_database(databases: dict[str, Any], settings: Any) -> None:
    settings.SQLQUEUE = databases | {"TOPICS": {"t": {"databases": [B]}}}
    publish("t", 1)
    with subscribe("t", timeout=20) as deliveries:
        delivery = next(iter(deliveries))
        assert delivery.database == B
        with transaction.atomic(using=B):
            delivery.ack()
    assert all_is_done()


def test_an_ack_in_a_transaction_of_its_database_is_part_of_that() -> None:
    publish("t", 1, key=KEYS[B])
    with subscribe("t", timeout=20) as deliveries:
        delivery = next(iter(deliveries))
        with transaction.atomic(using=B):
            delivery.ack()
            transaction.set_rollback(True, using=B)
        assert delivery.settled == ""
    assert not all_is_done()


def test_what_is_not_settled_is_released_on_every_database() -> None:
    publish_both(1)
    with subscribe("t", timeout=20) as deliveries:
        taken = iter(deliveries)
        assert {next(taken).database, next(taken).database} == {A, B}
    assert not all_is_done()
    assert nothing_is_held()


def test_an_error_on_one_database_ends_the_loop_and_releases_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    run, may_fail = Subscriber.run, threading.Event()

    def fails_on_b(self: Subscriber, **options: Any) -> None:
        if self.log.alias == B:
            options["started"]()
            assert may_fail.wait(60)
            raise RuntimeError("it is broken")
        run(self, **options)

    def receive() -> None:
        with subscribe("t", timeout=60) as deliveries:
            may_fail.set()
            list(deliveries)

    monkeypatch.setattr(Subscriber, "run", fails_on_b)
    with pytest.raises(RuntimeError, match="it is broken"):
        receive()
    assert nothing_is_held()


@async_to_sync
async def in_async_code() -> list[str]:
    seen = []
    async with asubscribe("t", timeout=20) as deliveries:
        async for delivery in deliveries:
            seen.append(delivery.database)
            await delivery.aack()
            if len(seen) == 4:
                deliveries.close()
    return seen


def test_in_async_code() -> None:
    publish_both(2)
    assert sorted(in_async_code()) == [A, A, B, B]
    assert all_is_done()
    assert nothing_is_held()
