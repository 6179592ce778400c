"""asubscribe(): the pull loop in async code, with all that subscribe() promises."""

import asyncio
import threading
import time
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from sqlqueue import (
    ConfigurationError,
    InvalidMessage,
    LeaseLost,
    NewMessage,
    apublish,
    asubscribe,
    publish,
    publish_many,
)
from sqlqueue.consumers.engine.loop import Loop
from sqlqueue.consumers.engine.settler import Settler
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.pull.subscribe import AsyncDeliveries
from sqlqueue.log.groups import revoke
from sqlqueue.models import DeliveryState, Message, PartitionLease, SubscriberHeartbeat
from sqlqueue.tracing.delivery_context import DeliveryContext
from tests.app.models import Effect
from tests.asynchronous.loops import Occupied, cancelled, in_loop, until
from tests.consuming import QUICK, Consuming, seconds_until_due, states
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.processlist import end_this_threads_connection
from tests.servers.session import connection_id

SOON, PATIENCE = 0.4, 60


async def received(count: int, **options: Any) -> list[Any]:
    """Receive and ack so many deliveries, and whatever else comes soon after them."""
    found = []
    async with asubscribe("t", timeout=PATIENCE if count else SOON, **options) as deliveries:
        async for delivery in deliveries:
            found.append(delivery.payload)
            await delivery.aack()
            if len(found) >= count:
                deliveries._timeout = SOON
    return found


async def taken(deliveries: AsyncDeliveries, count: int) -> list[Any]:
    return [await anext(deliveries) for _ in range(count)]


def engines() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sqlqueue-subscribe"]


def nothing_is_left() -> None:
    """No thread, no lease, no heartbeat."""
    assert engines() == []
    assert PartitionLease.objects.exclude(holder="").count() == 0
    assert SubscriberHeartbeat.objects.count() == 0


@pytest.mark.once
class TestReceiving:
    def test_what_is_acked_never_comes_again(self, consuming: Consuming) -> None:
        publish_many("t", [NewMessage(number, key="a") for number in range(5)])
        assert in_loop(received(5)) == [0, 1, 2, 3, 4]
        assert in_loop(received(0)) == []
        nothing_is_left()

    def test_what_comes_later_wakes_it(self, consuming: Consuming) -> None:
        async def main() -> list[Any]:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                waiting = asyncio.ensure_future(anext(deliveries))
                await asyncio.sleep(0.1)
                assert not waiting.done()
                await apublish("t", 1)
                first = await waiting
                await first.aack()
                await apublish("t", 2)
                return [first.payload, (await anext(deliveries)).payload]

        assert in_loop(main()) == [1, 2]

    def test_several_tasks_share_it(self, consuming: Consuming) -> None:
        publish_many("t", range(60))

        async def main() -> list[list[Any]]:
            async with asubscribe("t", timeout=PATIENCE, batch_size=10) as deliveries:
                seen: list[list[Any]] = [[] for _ in range(4)]

                async def work(mine: list[Any]) -> None:
                    async for delivery in deliveries:
                        await asyncio.sleep(0.001)
                        await delivery.aack()
                        mine.append(delivery.payload)  # behind the ack: the last one closes what others still hold
                        if sum(map(len, seen)) == 60:
                            deliveries.close()

                await asyncio.gather(*map(work, seen))
            return seen

        seen = in_loop(main())
        assert sorted(number for mine in seen for number in mine) == list(range(60))
        assert all(seen)
        nothing_is_left()

    def test_it_ends_when_nothing_has_come_for_the_timeout(self, consuming: Consuming) -> None:
        began = time.monotonic()
        assert in_loop(received(0)) == []
        assert time.monotonic() - began >= SOON

    def test_no_more_than_a_batch_is_unsettled_at_once(self, consuming: Consuming) -> None:
        publish_many("t", range(30))

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE, batch_size=10) as deliveries:
                held = await taken(deliveries, 10)
                deliveries._timeout = SOON
                assert [each async for each in deliveries] == []
                for delivery in held:
                    await delivery.aack()
                deliveries._timeout = PATIENCE
                assert len(await taken(deliveries, 10)) == 10

        in_loop(main())

    def test_a_delivery_is_one_for_log_lines_and_has_all_that_a_message_has(self, consuming: Consuming) -> None:
        offset = publish("t", {"n": 1}, key="ann", id="one", headers={"h": 2}).offset

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                delivery = await anext(deliveries)
                assert (delivery.payload, delivery.key, delivery.id) == ({"n": 1}, "ann", "one")
                assert (delivery.headers, delivery.offset, delivery.attempt) == ({"h": 2}, offset, 1)
                delivery.extend(seconds=100)
                with DeliveryContext(delivery):
                    await delivery.aack()

        in_loop(main())


@pytest.mark.once
class TestSettling:
    def test_retry_postpone_reject_and_fail(self, consuming: Consuming) -> None:
        offsets = {name: publish("t", name).offset for name in ("retry", "postpone", "reject", "fail")}

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE, backoff=5_000, jitter=0, max_backoff=5_000) as deliveries:
                for delivery in await taken(deliveries, 4):
                    if delivery.payload == "retry":
                        await delivery.aretry(delay=3_000, reason="later")
                    elif delivery.payload == "postpone":
                        await delivery.apostpone(delay=4_000)
                    elif delivery.payload == "reject":
                        await delivery.areject("bad")
                    else:
                        await delivery.afail(ValueError("odd"))
                    assert delivery.settled == delivery.payload

        in_loop(main())
        expected = [(offsets["retry"], 1, False), (offsets["postpone"], 0, False), (offsets["fail"], 1, False)]
        assert states("t") == sorted(expected)
        assert 2_900 < seconds_until_due(offsets["retry"]) <= 3_000.1
        assert 3_900 < seconds_until_due(offsets["postpone"]) <= 4_000.1
        assert 4_900 < seconds_until_due(offsets["fail"]) <= 5_000.1
        assert "ValueError: odd" in DeliveryState.objects.get(message_offset=offsets["fail"]).last_error
        assert Message.objects.get(topic="t_dlq").last_error == "bad"

    def test_twice_in_the_same_way_does_nothing_and_in_another_is_refused(self, consuming: Consuming) -> None:
        publish("t", 1)

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                delivery = await anext(deliveries)
                with pytest.raises(InvalidMessage, match="delay"):
                    await delivery.aretry(delay=-1)
                await delivery.aack()
                await delivery.aack()
                with pytest.raises(ConfigurationError, match=r"settled already, by ack\(\)"):
                    await delivery.areject("x")

        in_loop(main())
        assert in_loop(received(0)) == []

    def test_in_a_transaction_of_a_function_for_sync_to_async(self, consuming: Consuming) -> None:
        publish_many("t", ["kept", "rolled back"])

        @sync_to_async
        def handle(delivery: Any) -> None:
            with transaction.atomic():
                Effect.objects.create(name="seen", value=delivery.payload)
                delivery.ack()
                if delivery.payload == "rolled back":
                    transaction.set_rollback(True)

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                for delivery in await taken(deliveries, 2):
                    await handle(delivery)
                    assert delivery.settled == ("ack" if delivery.payload == "kept" else "")

        in_loop(main())
        assert Effect.objects.get().value == "kept"
        assert in_loop(received(1)) == ["rolled back"]
        assert not states("t")

    def test_in_a_transaction_that_is_open_on_the_receivers_connection(self, consuming: Consuming) -> None:
        """An ack that went around it would lose the message with the rollback."""
        publish("t", 1)

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                delivery = await anext(deliveries)
                block = transaction.atomic()
                await sync_to_async(block.__enter__)()
                await delivery.aack()
                await sync_to_async(transaction.set_rollback)(True)
                await sync_to_async(block.__exit__)(None, None, None)
                assert delivery.settled == ""

        in_loop(main())
        assert in_loop(received(1)) == [1]

    def test_while_one_is_acked_in_a_transaction_another_task_gets_the_next(self, consuming: Consuming) -> None:
        """The thread's transaction goes on meanwhile; that would hold up a sync loop, which has one thread only."""
        publish_many("t", [1, 2])
        go_on, acked = threading.Event(), threading.Event()

        @sync_to_async
        def handle(delivery: Any) -> None:
            with transaction.atomic():
                delivery.ack()
                acked.set()
                go_on.wait(60)

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE, ordering="none") as deliveries:
                first = await anext(deliveries)
                handling = asyncio.ensure_future(handle(first))
                await until(acked.is_set)
                second = await anext(deliveries)
                go_on.set()
                await handling
                await second.aack()

        in_loop(main())
        assert in_loop(received(0)) == []


@pytest.mark.once
class TestLosing:
    def test_leases_are_renewed_while_the_loop_is_blocked(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = QUICK | {"LEASE_DURATION": 1.0, "HEARTBEAT_INTERVAL": 0.3}
        publish("t", 1)

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                delivery = await anext(deliveries)
                holders = set(await sync_to_async(list)(PartitionLease.objects.values_list("holder", "fencing_token")))
                time.sleep(2.5)  # nothing else runs in the loop
                now = set(await sync_to_async(list)(PartitionLease.objects.values_list("holder", "fencing_token")))
                assert now == holders
                delivery.check_lease()
                await delivery.aack()

        in_loop(main())
        assert in_loop(received(0)) == []

    def test_one_that_has_timed_out_is_lost_and_comes_again(self, consuming: Consuming) -> None:
        publish("t", 1)

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE, visibility_timeout=0.5, backoff=0) as deliveries:
                late, again = await taken(deliveries, 2)
                again.extend(seconds=300)
                assert (again.payload, again.attempt) == (1, 2)
                with pytest.raises(LeaseLost):
                    await late.aack()
                await again.aack()

        in_loop(main())
        assert in_loop(received(0)) == []

    def test_one_whose_lease_is_lost_is_refused_and_the_next_ones_come(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = QUICK | {"PARTITIONS": 1, "HEARTBEAT_INTERVAL": 0.5}
        publish("t", 1)

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                delivery = await anext(deliveries)
                await sync_to_async(transaction.atomic(revoke))(LOG, "default", "t")
                await until(lambda: delivery._attempt.lease.lost)
                with pytest.raises(LeaseLost):
                    await delivery.aack()
                again = await anext(deliveries)
                assert again.payload == 1
                await again.aack()

        in_loop(main())
        assert not states("t")

    def test_what_ends_the_engine_is_raised_in_every_task(self, consuming: Consuming, monkeypatch) -> None:
        gate = threading.Event()

        def broken(self: Loop) -> float:
            gate.wait(60)
            raise RuntimeError("the engine broke")

        monkeypatch.setattr(Loop, "run_once", broken)

        async def main() -> list[BaseException]:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                waiting = [asyncio.ensure_future(anext(deliveries)) for _ in range(3)]
                await asyncio.sleep(0.05)
                gate.set()
                return await asyncio.gather(*waiting, return_exceptions=True)

        assert [str(error) for error in in_loop(main())] == ["the engine broke"] * 3
        assert engines() == []


@pytest.mark.once
class TestEnding:
    def test_what_is_not_settled_on_leaving_is_released_uncharged(self, consuming: Consuming) -> None:
        publish_many("t", [1, 2, 3])

        async def main() -> Any:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                first, second = await taken(deliveries, 2)
                await first.aack()
            with pytest.raises(LeaseLost):
                await second.aack()
            return second.payload

        left = in_loop(main())
        nothing_is_left()

        async def again() -> dict[Any, int]:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                return {delivery.payload: delivery.attempt for delivery in await taken(deliveries, 2)}

        attempts = in_loop(again())
        assert attempts[left] == 1

    @pytest.mark.parametrize("where", ["waiting", "working", "acking"])
    def test_a_cancelled_task_leaves_nothing_behind(self, consuming: Consuming, where: str) -> None:
        if where != "waiting":
            publish("t", 1)
        reached = threading.Event()

        async def work() -> None:
            async with asubscribe("t") as deliveries:
                if where == "waiting":
                    asyncio.get_running_loop().call_later(0.1, reached.set)
                async for delivery in deliveries:
                    if where == "acking":
                        blocked = asyncio.ensure_future(sync_to_async(time.sleep)(0.3))
                        await asyncio.sleep(0.05)
                        reached.set()
                        await delivery.aack()
                        await blocked
                    reached.set()
                    await asyncio.sleep(60)

        async def main() -> float:
            working = asyncio.create_task(work())
            await until(reached.is_set)
            began = time.monotonic()
            await cancelled(working)
            assert working.cancelled()
            return time.monotonic() - began

        assert in_loop(main()) < 5
        nothing_is_left()
        assert in_loop(received(0 if where == "waiting" else 1)) == ([] if where == "waiting" else [1])

    def test_one_cancelled_twice_waits_until_the_leases_are_released(self, consuming: Consuming, monkeypatch) -> None:
        has_one, entered, go_on = threading.Event(), threading.Event(), threading.Event()
        release = Settler.release

        def slow(self: Settler, partitions: Any, now: float) -> None:
            if partitions:
                entered.set()
                go_on.wait(60)
            release(self, partitions, now)

        publish("t", 1)

        async def work() -> None:
            async with asubscribe("t") as deliveries:
                await anext(deliveries)
                monkeypatch.setattr(Settler, "release", slow)
                has_one.set()
                await asyncio.sleep(60)

        async def main() -> None:
            working = asyncio.create_task(work())
            await until(has_one.is_set)
            working.cancel()
            await until(entered.is_set)
            working.cancel()
            await asyncio.sleep(0.05)
            assert not working.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await working

        in_loop(main())
        nothing_is_left()

    def test_one_cancelled_while_it_starts(self, consuming: Consuming, monkeypatch) -> None:
        entered, go_on = threading.Event(), threading.Event()
        start = Subscriber.start
        opened: list[bool] = []

        def slow(self: Subscriber) -> None:
            entered.set()
            opened.append(go_on.wait(5))  # the loop opens it, unless it is blocked meanwhile
            start(self)

        monkeypatch.setattr(Subscriber, "start", slow)

        async def main() -> None:
            working = asyncio.create_task(received(1))
            await until(entered.is_set)
            working.cancel()
            asyncio.get_running_loop().call_later(0.1, go_on.set)
            with pytest.raises(asyncio.CancelledError):
                await working

        in_loop(main())
        assert opened == [True]
        nothing_is_left()

    def test_a_wait_for_the_next_one_that_is_given_up_loses_none(self, consuming: Consuming, monkeypatch) -> None:
        monkeypatch.setattr("sqlqueue.consumers.pull.subscribe.CONNECTIONS_LAST", 0.0)  # looks at them each time

        async def main() -> list[Any]:
            found = []
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                for number in range(3):
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(anext(deliveries), 0.02)  # before it comes
                    await apublish("t", number)
                    async with Occupied():
                        await until(lambda: not deliveries._deliveries.empty())
                        with pytest.raises(asyncio.TimeoutError):
                            await asyncio.wait_for(anext(deliveries), 0.02)  # once it has come
                    found += await taken(deliveries, 1)
                    await found[-1].aack()
            return [(delivery.payload, delivery.attempt) for delivery in found]

        assert in_loop(main()) == [(number, 1) for number in range(3)]

    def test_a_cancellation_that_comes_together_with_a_change_is_not_lost(self, consuming: Consuming) -> None:
        async def main() -> None:
            async with asubscribe("t", timeout=5) as deliveries:
                for steps in range(4):
                    waiting = asyncio.ensure_future(anext(deliveries))
                    await asyncio.sleep(0.02)
                    deliveries._changed()
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    waiting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waiting

        in_loop(main())

    def test_another_thread_may_end_it(self, consuming: Consuming) -> None:
        publish("t", 1)

        async def main() -> None:
            async with asubscribe("t") as deliveries:
                unsettled = await anext(deliveries)
                threading.Timer(0.1, deliveries.close).start()
                assert [each async for each in deliveries] == []
                with pytest.raises(LeaseLost):
                    await unsettled.aack()

        in_loop(main())
        assert in_loop(received(1)) == [1]

    def test_what_has_arrived_is_not_given_once_it_is_closed(self, consuming: Consuming) -> None:
        publish_many("t", [1, 2, 3])

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                await (await anext(deliveries)).aack()
                await until(lambda: not deliveries._deliveries.empty())
                deliveries.close()
                assert [each async for each in deliveries] == []

        in_loop(main())
        assert len(in_loop(received(2))) == 2

    def test_a_loop_that_was_closed_under_it_ends_the_engine_with_the_next_message(self, consuming: Consuming) -> None:
        loop = asyncio.new_event_loop()
        left = asubscribe("t")
        loop.run_until_complete(left.__aenter__())
        loop.run_until_complete(sync_to_async(connections.close_all)())
        loop.close()
        publish("t", 1)
        wait_until(lambda: not engines())
        nothing_is_left()

    def test_an_error_in_the_block(self, consuming: Consuming) -> None:
        publish("t", 1)

        async def main() -> None:
            async with asubscribe("t", timeout=PATIENCE) as deliveries:
                (await anext(deliveries)).payload / 0

        with pytest.raises(ZeroDivisionError):
            in_loop(main())
        nothing_is_left()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": True}, "not batch"),
        ({"atomic": True}, "not atomic"),
        ({"orderng": "key"}, "Did you mean 'ordering'"),
        ({"group": "no name"}, "group"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_options_that_cannot_be(consuming: Consuming, options: dict, said: str) -> None:
    async def main() -> None:
        async with asubscribe("t", **options):
            pass

    with pytest.raises((ConfigurationError, InvalidMessage), match=said):
        in_loop(main())
    assert engines() == []


def test_what_keeps_the_engine_from_starting_is_raised(consuming: Consuming, monkeypatch) -> None:
    def broken(self: Subscriber) -> None:
        raise RuntimeError("no start")

    monkeypatch.setattr(Subscriber, "start", broken)
    with pytest.raises(RuntimeError, match="no start"):
        in_loop(received(1))
    assert engines() == []


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.session
def test_the_receivers_connection_that_the_server_has_ended_is_replaced(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.consumers.pull.subscribe.CONNECTIONS_LAST", 0.0)  # as if time had passed
    publish_many("t", range(3))

    async def main() -> set[int]:
        used = set()
        async with asubscribe("t", timeout=30) as deliveries:
            for _ in range(3):
                delivery = await anext(deliveries)
                used.add(await sync_to_async(connection_id)())
                await delivery.aack()
                await sync_to_async(end_this_threads_connection)()
        return used

    assert len(in_loop(main())) == 3
