"""Async twins publish as their sync functions do, on the connection of the caller's other database calls."""

import asyncio
import inspect
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections, transaction
from django.test import TestCase

from sqlqueue import (
    ConfigurationError,
    InvalidMessage,
    NewMessage,
    acancel,
    acknowledge,
    aget_scheduled,
    aget_status,
    apublish,
    apublish_many,
    call,
    cancel,
    cancel_all,
    discard,
    get_scheduled,
    get_status,
    publish,
    publish_many,
    publish_on_commit,
    replay,
    subscribe,
)
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.signals import message_published
from sqlqueue.testing import drain, published
from tests.app.models import Effect
from tests.asynchronous.loops import Occupied, cancelled, in_loop, until

pytestmark = pytest.mark.django_db(transaction=True)


def payloads() -> list[Any]:
    return list(Message.objects.order_by("offset").values_list("payload", flat=True))


class TestPublishing:
    def test_one(self) -> None:
        async def main() -> None:
            first = await apublish("t", {"n": 1}, key="ann", id="one", headers={"h": 2}, priority=0)
            again = await apublish("t", {"n": 1}, key="ann", id="one")
            assert (first.created, again.created) == (True, False)
            assert first.offset == again.offset

        in_loop(main())
        message = Message.objects.get()
        assert (message.payload, message.partition_key, message.message_id) == ({"n": 1}, "ann", "one")
        assert message.headers == {"h": 2}

    def test_many_from_a_generator_and_for_later(self) -> None:
        async def main() -> None:
            result = await apublish_many("t", (NewMessage(number, id=str(number)) for number in (1, 2, 1)))
            assert (result.created, result.ignored, result.ids) == (2, 1, None)
            later = await apublish("t", 3, delay=300)
            assert (later.offset, later.created) == (None, True)

        in_loop(main())
        assert payloads() == [1, 2]
        assert ScheduledMessage.objects.get().payload == 3

    def test_what_is_scheduled_is_taken_back(self) -> None:
        async def main() -> list[bool]:
            await apublish("t", 1, id="a", delay=60)
            return [await acancel("t", id="a"), await acancel("t", id="a")]

        assert in_loop(main()) == [True, False]
        assert not ScheduledMessage.objects.exists()

    def test_what_is_scheduled_is_looked_at(self) -> None:
        async def main() -> None:
            await apublish("t", {"n": 1}, id="a", delay=60)
            scheduled = await aget_scheduled("t", id="a")
            assert scheduled is not None
            assert scheduled.payload == {"n": 1}
            assert await aget_scheduled("t", id="b") is None

        in_loop(main())

    def test_its_status_is_asked_for(self) -> None:
        async def main() -> list[bool]:
            await apublish("t", 1, id="a")
            return [await aget_status("t", id=id) is None for id in ("a", "b")]

        assert in_loop(main()) == [False, True]

    def test_what_is_refused_is_refused(self) -> None:
        async def main() -> None:
            with pytest.raises(InvalidMessage, match="key"):
                await apublish("t", 1, key="x" * 256)
            with pytest.raises(InvalidMessage):
                await apublish_many("t", [1, float("nan")])

        in_loop(main())
        assert payloads() == []

    def test_side_by_side_each_is_there_once(self) -> None:
        async def main() -> None:
            await asyncio.gather(*(apublish("t", number, id=str(number % 20)) for number in range(40)))

        in_loop(main())
        assert sorted(payloads()) == list(range(20))

    def test_one_that_fails_leaves_the_others(self) -> None:
        async def main() -> list[object]:
            return await asyncio.gather(
                apublish("t", 1), apublish("t", float("nan")), apublish("t", 2), return_exceptions=True
            )

        ends = in_loop(main())
        assert [isinstance(end, InvalidMessage) for end in ends] == [False, True, False]
        assert payloads() == [1, 2]

    def test_it_announces_what_publish_announces(self) -> None:
        seen: list[tuple[Any, str, int]] = []

        def note(sender: Any, topic: str, count: int, **_: Any) -> None:
            seen.append((sender, topic, count))

        message_published.connect(note)
        try:

            async def main() -> None:
                await apublish("t", 1)
                await apublish_many("t", [2, 3])

            in_loop(main())
        finally:
            message_published.disconnect(note)
        assert seen == [(publish, "t", 1), (publish_many, "t", 2)]


class TestTransactions:
    def test_in_a_function_for_sync_to_async_it_commits_with_the_callers_rows(self) -> None:
        @sync_to_async
        @transaction.atomic
        def place(number: int, fails: bool = False) -> None:
            Effect.objects.create(name="order", value=str(number))
            publish("t", number)
            if fails:
                raise ValueError

        async def main() -> None:
            await place(1)
            with pytest.raises(ValueError):  # noqa: PT011  the test's own
                await place(2, fails=True)

        in_loop(main())
        assert payloads() == [1]
        assert Effect.objects.get().value == "1"

    def test_a_twin_joins_the_transaction_that_is_open_on_the_callers_connection(self) -> None:
        """Django has no async atomic(), but a transaction can be opened there by hand."""

        async def main() -> None:
            for number, commits in ((1, True), (2, False)):
                block = transaction.atomic()
                await sync_to_async(block.__enter__)()
                await Effect.objects.acreate(name="order", value=str(number))
                await apublish("t", number)
                await apublish_many("t", [number])
                if not commits:
                    await sync_to_async(transaction.set_rollback)(True)
                await sync_to_async(block.__exit__)(None, None, None)

        in_loop(main())
        assert payloads() == [1, 1]
        assert Effect.objects.get().value == "1"

    def test_a_twin_that_a_transaction_calls_through_async_to_sync_is_part_of_it(self) -> None:
        @sync_to_async
        def place(fails: bool) -> None:
            with transaction.atomic():
                async_to_sync(apublish)("t", 1)
                transaction.set_rollback(fails)

        async def main() -> None:
            await place(fails=False)
            await place(fails=True)

        in_loop(main())
        assert payloads() == [1]

    def test_hooks_run_after_the_commit(self) -> None:
        @sync_to_async
        def place() -> list[Any]:
            with transaction.atomic():
                publish_on_commit("t", 1)
                before = payloads()
            return [before, payloads()]

        assert in_loop(place()) == [[], [1]]


class InATestCase(TestCase):
    """An async test of Django's TestCase runs database calls in the test's own thread and transaction."""

    async def test_a_twin_is_in_the_tests_transaction(self) -> None:
        await apublish("t", 1)
        assert [message.payload for message in await sync_to_async(published)("t")] == [1]
        assert await sync_to_async(lambda: connections["default"].in_atomic_block)()


class TestCancellation:
    def test_what_waits_for_the_thread_is_not_published(self) -> None:
        async def main() -> None:
            async with Occupied():
                waiting = asyncio.create_task(apublish("t", 1))
                await asyncio.sleep(0.05)
                await cancelled(waiting)
                assert waiting.cancelled()
            await apublish("t", 2)

        in_loop(main())
        assert payloads() == [2]

    def test_what_runs_already_is_published_although_its_caller_does_not_see_it(self, monkeypatch) -> None:
        from sqlqueue.log import conflicts as module

        entered, go_on = threading.Event(), threading.Event()
        insert_one = module.insert_one

        def slow(log: Log, row: LogRow, may_repeat: bool) -> Any:
            entered.set()
            go_on.wait(60)
            return insert_one(log, row, may_repeat)

        monkeypatch.setattr(module, "insert_one", slow)

        async def main() -> None:
            running = asyncio.create_task(apublish("t", 1, id="once"))
            await until(entered.is_set)
            await cancelled(running)
            assert running.cancelled()
            go_on.set()
            again = await apublish("t", 1, id="once")  # what the caller can do: the id makes it harmless
            assert not again.created

        in_loop(main())
        assert payloads() == [1]

    def test_a_transaction_in_the_thread_commits_as_a_whole(self) -> None:
        entered, go_on = threading.Event(), threading.Event()

        @sync_to_async
        @transaction.atomic
        def place() -> None:
            publish("t", 1)
            entered.set()
            go_on.wait(60)
            publish("t", 2)

        async def main() -> None:
            running = asyncio.create_task(place())
            await until(entered.is_set)
            await cancelled(running)
            go_on.set()

        in_loop(main())
        assert payloads() == [1, 2]


REFUSED = {
    "publish": (lambda: publish("t", 1), r"await apublish\(…\)"),
    "publish_many": (lambda: publish_many("t", [1]), r"await apublish_many\(…\)"),
    "publish_many of none": (lambda: publish_many("t", []), r"await apublish_many\(…\)"),
    "publish_on_commit": (lambda: publish_on_commit("t", 1), r"await apublish\(…\)"),
    "subscribe": (lambda: subscribe("t", timeout=0).__enter__(), r"async with asubscribe\(…\)"),
    "call": (lambda: call("t", 1, timeout=1), r"await acall\(…\)"),
    "cancel": (lambda: cancel("t", id="a"), r"await acancel\(…\)"),
    "cancel_all": (lambda: cancel_all("t", key="a"), r"await sync_to_async\(cancel_all\)"),
    "get_scheduled": (lambda: get_scheduled("t", id="a"), r"await aget_scheduled\(…\)"),
    "get_status": (lambda: get_status("t", id="a"), r"await aget_status\(…\)"),
    "replay": (lambda: replay("t"), r"await sync_to_async\(replay\)"),
    "acknowledge": (lambda: acknowledge("t", "g", key="a"), r"await sync_to_async\(acknowledge\)"),
    "discard": (lambda: discard("t"), r"await sync_to_async\(discard\)"),
    "drain": (lambda: drain(), r"await sync_to_async\(drain\)"),
    "published": (lambda: published(), r"await sync_to_async\(published\)"),
}


class TestSyncCallsInAsyncCode:
    @pytest.mark.parametrize(("refused", "said"), REFUSED.values(), ids=REFUSED.keys())
    def test_are_refused_with_what_to_write(self, refused: Any, said: str) -> None:
        async def main() -> None:
            with pytest.raises(SynchronousOnlyOperation, match=said):
                refused()

        in_loop(main())
        assert payloads() == []

    @pytest.mark.parametrize(
        "wrong", [lambda: publish("t", 1, key="x" * 256), lambda: subscribe("t", max_attempts=0).__enter__()]
    )
    def test_before_anything_else(self, wrong: Any) -> None:
        async def main() -> None:
            with pytest.raises(SynchronousOnlyOperation):
                wrong()

        in_loop(main())

    def test_are_let_through_where_django_is_told_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # for notebooks

        async def main() -> None:
            publish("t", 1)
            connections.close_all()  # those of the loop's own thread

        in_loop(main())
        assert payloads() == [1]

    def test_are_no_matter_in_a_function_that_the_loop_runs_in_a_thread(self) -> None:
        async def main() -> None:
            await sync_to_async(publish)("t", 1)
            await asyncio.to_thread(self._publish_and_hang_up)

        in_loop(main())
        assert payloads() == [1, 2]

    @staticmethod
    def _publish_and_hang_up() -> None:
        publish("t", 2)
        connections.close_all()


@pytest.mark.parametrize(
    ("twin", "name", "of"), [(apublish, "apublish", publish), (apublish_many, "apublish_many", publish_many)]
)
def test_a_twin_looks_like_its_function(twin: Any, name: str, of: Any) -> None:
    assert (twin.__name__, twin.__qualname__, twin.__module__) == (name, name, of.__module__)
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(of)
    assert twin.__doc__.startswith(f"The async twin of {of.__name__}")


def test_a_database_error_is_raised_in_the_callers_task(monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlqueue.log import publish as module

    def broken(*_: object, **__: object) -> Any:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(module, "insert_one", broken)

    async def main() -> None:
        with pytest.raises(DatabaseError, match="disk"):
            await apublish("t", 1)

    in_loop(main())


def test_an_undeclared_topic_is_refused(settings) -> None:
    settings.SQLQUEUE = {"TOPICS": {"orders": {}}}

    async def main() -> None:
        with pytest.raises(ConfigurationError, match="Did you mean 'orders'"):
            await apublish("ordres", 1)

    in_loop(main())
