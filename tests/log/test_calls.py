"""call(): the caller gets what the handler returned, once that is acked; or the error of the dead letter."""

import asyncio
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.test import TestCase

from sqlqueue import (
    CallFailed,
    ConfigurationError,
    InvalidMessage,
    Postpone,
    Reject,
    Retry,
    acall,
    call,
    get_status,
    publish,
    subscribe,
)
from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.consumers.declare.registry import build, registry
from sqlqueue.log import calls, groups
from sqlqueue.log.collect import collect
from sqlqueue.models import ConsumerGroup, Message, Result, Topic
from sqlqueue.operations.drop import drop
from sqlqueue.operations.messages import delete
from sqlqueue.operations.move import move
from sqlqueue.operations.topics import purge
from sqlqueue.testing import answering, published
from tests.asynchronous.loops import in_loop, until
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.processlist import end_this_threads_connection

LONG = 60  # seconds: a call that ends sooner was answered
SHORT = 0.05
DAY = timedelta(days=1)
KINDS = pytest.mark.parametrize("kind", ["sync", "atomic", "async"])


def register(consuming: Consuming, kind: str, handle: Any, **options: Any) -> None:
    async def handle_async(given: Any) -> Any:
        return handle(given)

    consuming.consumer("t", handle_async if kind == "async" else handle, atomic=kind == "atomic", **options)


@KINDS
class TestReply:
    @pytest.mark.parametrize("value", [{"url": "ä", "n": [1, None]}, [], "", 0, False, "null"], ids=repr)
    def test_is_what_the_handler_returned(self, consuming: Consuming, kind: str, value: object) -> None:
        register(consuming, kind, lambda delivery: value)
        consuming.start()
        reply = call("t", 1, timeout=LONG, key="k")
        assert (reply, type(reply)) == (value, type(value))

    def test_is_what_the_handler_replied_first(self, consuming: Consuming, kind: str) -> None:
        def handle(delivery: Any) -> int:
            delivery.reply({"n": 1})
            delivery.reply(2)
            return 3

        register(consuming, kind, handle)
        consuming.start()
        assert call("t", 1, timeout=LONG) == {"n": 1}

    def test_is_that_of_the_attempt_that_was_acked(self, consuming: Consuming, kind: str) -> None:
        def handle(delivery: Any) -> int:
            delivery.reply(delivery.attempt)
            if delivery.attempt == 1:
                raise Retry("not yet", delay=0)
            return 7

        register(consuming, kind, handle)
        consuming.start()
        assert call("t", 1, timeout=LONG) == 2

    def test_of_a_batch_is_one_for_each_message(self, consuming: Consuming, kind: str) -> None:
        def handle(deliveries: list[Any]) -> str:
            for delivery in deliveries:
                if delivery.payload >= 0:
                    delivery.reply(delivery.payload * 2)
            return "of all: nobody's reply"

        register(consuming, kind, handle, batch=True)
        consuming.start()
        assert call("t", 4, timeout=LONG) == 8
        assert call("t", -1, timeout=LONG) is None
        publish("t", 5)

    def test_is_none_once_every_group_has_acked(self, consuming: Consuming, kind: str) -> None:
        register(consuming, kind, lambda delivery: None)
        register(consuming, kind, lambda delivery: None, group="other")
        consuming.start()
        assert call("t", 1, timeout=LONG) is None

    @pytest.mark.parametrize("how", ["reject", "raise", "return", "reply"])
    def test_a_dead_letter_raises_at_the_caller(self, consuming: Consuming, kind: str, how: str) -> None:
        def handle(delivery: Any) -> object:
            if how == "reject":
                raise Reject("no such thing")
            if how == "raise":
                raise ValueError("wrong")
            if how == "reply":
                delivery.reply({1, 2})
            return {1, 2}

        register(consuming, kind, handle, max_attempts=1)
        consuming.start()
        with pytest.raises(CallFailed) as caught:
            call("t", 1, timeout=LONG, key="k")
        error = {"reject": "no such thing", "raise": "ValueError: wrong"}.get(how, "not JSON")
        assert error in caught.value.error
        assert caught.value.error in str(caught.value)
        assert (caught.value.topic, caught.value.key, caught.value.group) == ("t", "k", "default")
        status = get_status("t", id=caught.value.id, key="k")
        assert status is not None
        assert status.groups["default"].state == "dead"

    def test_is_stored_as_long_as_the_consumer_or_the_caller_says(self, consuming: Consuming, kind: str) -> None:
        register(consuming, kind, lambda delivery: 1, keep_results=0.001)
        register(consuming, kind, lambda delivery: 1, group="days", keep_results=DAY)
        consuming.start()
        call("t", 1, timeout=LONG)
        wait_until(lambda: Result.objects.count() == 2)
        kept = {row.consumer_group: (row.expires_at - row.finished_at).total_seconds() for row in Result.objects.all()}
        assert LONG < kept["default"] < 2 * LONG + calls.FETCHED_WITHIN < kept["days"]


def test_a_reply_does_not_wait_for_a_slow_message_of_its_partition(consuming: Consuming, settings: Any) -> None:
    """The position cannot pass the slow one, so the ack would stay in memory for FLUSH_INTERVAL."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "FLUSH_INTERVAL": 3600.0}
    go, begun = consuming.gate(), threading.Event()

    def handle(delivery: Any) -> Any:
        if delivery.payload == "slow":
            begun.set()
            go.wait()  # until the test ends
        return delivery.payload

    consuming.consumer("t", handle)
    consuming.start()
    publish("t", "slow", key="slow")
    assert begun.wait(LONG)
    assert call("t", "quick", timeout=LONG, key="quick") == "quick"


class TestGroups:
    def test_the_first_reply_counts(self, consuming: Consuming) -> None:
        go = consuming.gate()
        consuming.consumer("t", lambda delivery: "first")
        consuming.consumer("t", lambda delivery: go.wait(LONG) and "second", group="late")
        consuming.start()
        assert call("t", 1, timeout=LONG) == "first"
        go.set()

    def test_one_that_returns_nothing_does_not_reply_for_the_others(self, consuming: Consuming) -> None:
        go = consuming.gate()
        consuming.consumer("t", lambda delivery: go.set(), group="audit")
        consuming.consumer("t", lambda delivery: go.wait(LONG) and "reply")
        consuming.start()
        assert call("t", 1, timeout=LONG) == "reply"

    def test_a_dead_letter_of_one_is_not_the_end_of_the_others(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = threading.Event()  # the caller has looked since there is a dead letter
        look = calls.Call.look

        def noting(self: calls.Call) -> bool:
            there = Result.objects.exists()
            known = look(self)
            if there:
                seen.set()
            return known

        def reject(delivery: Any) -> None:
            raise Reject("no")

        monkeypatch.setattr(calls.Call, "look", noting)
        consuming.consumer("t", reject, group="broken")
        consuming.consumer("t", lambda delivery: int(seen.wait(LONG)))
        consuming.start()
        assert call("t", 1, timeout=LONG) == 1

    def test_a_dead_letter_is_told_though_another_group_is_away(self, consuming: Consuming) -> None:
        def reject(delivery: Any) -> None:
            raise Reject("no")

        consuming.consumer("t", reject)
        groups.register(LOG, "away", "t")
        consuming.start()
        with pytest.raises(CallFailed, match="no"):
            call("t", 1, timeout=1)

    def test_only_that_group_is_asked_which_it_is_for(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: "one", group="one")
        consuming.consumer("t", lambda delivery: "two", group="two")
        consuming.start()
        assert [call("t", 1, timeout=LONG, group=group) for group in ("one", "two")] == ["one", "two"]


class TestNoReply:
    def test_in_time_is_a_timeout_and_the_message_is_still_handled(self, consuming: Consuming) -> None:
        seen: list[Any] = []
        consuming.consumer("t", lambda delivery: seen.append((delivery.payload, delivery.headers)))
        groups.register(LOG, "default", "t")
        with pytest.raises(TimeoutError, match=r"no reply after 0\.05 .* may still be handled: see get_status"):
            call("t", 1, timeout=SHORT, headers={"own": 2})
        consuming.drain()
        assert seen == [(1, {"own": 2})]

    def test_without_any_consumer_says_so(self, consuming: Consuming) -> None:
        with pytest.raises(TimeoutError, match="no group of the topic is registered"):
            call("t", 1, timeout=0)

    def test_what_has_expired_is_not_handled(self, consuming: Consuming) -> None:
        seen: list[Any] = []
        consuming.consumer("t", seen.append)
        go = threading.Timer(0.3, consuming.start)
        go.start()
        with pytest.raises(CallFailed, match="expired"):
            call("t", 1, timeout=LONG, expires=0.01)
        go.join()
        assert seen == []

    @pytest.mark.parametrize("group", ["", "default"])
    def test_is_waited_for_once_every_group_leaves_it_out(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch, group: str
    ) -> None:
        monkeypatch.setattr(calls, "ASK_GROUPS_EVERY", 0.05)
        consuming.consumer("t", lambda delivery: "reply", where={"payload": 1})
        consuming.start()
        with pytest.raises(CallFailed, match=r"no handler gets it: the filter") as caught:
            call("t", 2, timeout=LONG, group=group)
        assert caught.value.group == ""
        assert call("t", 1, timeout=LONG, group=group) == "reply"

    @pytest.mark.parametrize("way", ["skip", "purge", "drop"])
    def test_is_waited_for_once_an_operator_has_settled_or_deleted_it(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        monkeypatch.setattr(calls, "ASK_GROUPS_EVERY", 0.05)
        groups.register(LOG, "default", "t")
        ways = {
            "skip": lambda: move(LOG, "default", "t", 10**18),
            "purge": lambda: purge(LOG, "t", unsettled=True),
            "drop": lambda: drop(LOG, "t", unsettled=True),
        }

        def settle() -> None:
            wait_until(Message.objects.filter(topic="t").exists)
            ways[way]()
            connections.close_all()

        operator = threading.Thread(target=settle)
        operator.start()
        with pytest.raises(CallFailed, match=r"settled or deleted by hand") as caught:
            call("t", 1, timeout=LONG)
        operator.join()
        assert caught.value.group == ""

    def test_after_its_group_was_removed_says_so(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        groups.remove(LOG, "default", "t")
        with pytest.raises(TimeoutError, match="or its groups were removed"):
            call("t", 1, timeout=0)
        groups.register(LOG, "other", "t")
        with pytest.raises(TimeoutError, match=r"group 'default' is not registered .* or it was removed"):
            call("t", 1, timeout=0, group="default")

    def test_is_waited_for_once_one_group_has_acked_and_the_others_leave_it_out(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls, "ASK_GROUPS_EVERY", 0.05)
        consuming.consumer("t", lambda delivery: "reply", where={"payload": 1})
        consuming.consumer("t", lambda delivery: None, group="audit")
        consuming.start()
        assert call("t", 2, timeout=LONG) is None

    def test_is_waited_for_once_an_operator_has_deleted_it(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls, "ASK_GROUPS_EVERY", 0.05)
        groups.register(LOG, "default", "t")
        publishing = calls.publish_message

        def publish_and_delete(*given: Any, **options: Any) -> Any:
            published = publishing(*given, **options)
            delete(LOG, "t", [published.offset], also_unsettled=True)
            return published

        monkeypatch.setattr(calls, "publish_message", publish_and_delete)
        with pytest.raises(CallFailed, match="deleted by hand"):
            call("t", 1, timeout=LONG)

    def test_of_a_group_that_nobody_knows_names_the_others(self, consuming: Consuming) -> None:
        groups.register(LOG, "mails", "t")
        with pytest.raises(TimeoutError, match=r"group 'mail' is not registered .* Groups of the topic: mails"):
            call("t", 1, timeout=SHORT, group="mail")

    def test_while_it_is_postponed(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            raise Postpone(delay=DAY)

        consuming.start()
        with pytest.raises(TimeoutError):
            call("t", 1, timeout=0.5)

    def test_can_come_inside_a_transaction(self, consuming: Consuming) -> None:
        with transaction.atomic(), pytest.raises(ConfigurationError, match=r"transaction\.atomic"):
            call("t", 1, timeout=LONG)
        assert not Message.objects.exists()

    def test_can_come_in_an_atomic_handler(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: call("u", 1, timeout=LONG), atomic=True, max_attempts=1)
        consuming.start()
        with pytest.raises(CallFailed, match=r"transaction\.atomic"):
            call("t", 1, timeout=LONG)

    @pytest.mark.parametrize(
        "wrong", [{"timeout": -1}, {"timeout": "5"}, {"key": "x" * 256}, {"headers": {"sqlqueue-reply": 1}}]
    )
    def test_is_waited_for_by_a_wrong_call(self, consuming: Consuming, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidMessage):
            call("t", 1, **{"timeout": LONG, **wrong})
        assert not Message.objects.exists()


class TestLeftovers:
    def test_a_process_that_has_called_leaves_no_topic_and_no_group(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: 1)
        consuming.start()
        call("t", 1, timeout=LONG)
        assert list(Topic.objects.values_list("name", flat=True)) == ["t"]
        assert list(ConsumerGroup.objects.values_list("consumer_group", "topic")) == [("default", "t")]

    def test_what_a_dead_caller_has_not_fetched_is_collected(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CollectorTask, "run_once", lambda self: False)  # only the test collects
        monkeypatch.setattr(calls, "FETCHED_WITHIN", 0.001)
        consuming.consumer("t", lambda delivery: 1)
        groups.register(LOG, "default", "t")
        with pytest.raises(TimeoutError):
            call("t", 1, timeout=0)
        consuming.drain()
        assert Result.objects.count() == 1
        wait_until(lambda: collect(LOG).results == 1)
        assert not Result.objects.exists()

    def test_a_message_that_nobody_waits_for_stores_nothing(self, consuming: Consuming) -> None:
        def handle(delivery: Any) -> str:
            delivery.reply("for nobody")
            return '"sqlqueue-reply"'

        consuming.consumer("t", handle)
        publish("t", 1, headers={"own": '"sqlqueue-reply": 5'})
        consuming.drain()
        assert not Result.objects.exists()


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_caller_opens_a_lost_connection_again(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    consuming.consumer("t", lambda delivery: 1)
    consuming.start()
    read, lost = calls.Call._read, threading.Event()

    def losing(self: calls.Call, over: bool) -> Any:
        if not lost.is_set():
            lost.set()
            end_this_threads_connection()
        return read(self, over)

    monkeypatch.setattr(calls.Call, "_read", losing)
    assert call("t", 1, timeout=LONG) == 1


def test_a_pull_loop_replies(consuming: Consuming) -> None:
    replies: list[Any] = []

    def ask(number: int) -> None:
        try:
            replies.append(call("t", number, timeout=LONG))
        finally:
            connections.close_all()

    with ExitStack() as stack:
        deliveries = iter(stack.enter_context(subscribe("t", timeout=LONG)))
        for number in range(3):
            caller = threading.Thread(target=ask, args=[number])
            caller.start()
            delivery = next(deliveries)
            if number == 0:
                delivery.ack(result={"n": 0})
            elif number == 1:
                delivery.reply({"n": 1})
                delivery.ack()
            else:
                with transaction.atomic():
                    delivery.ack(result={"n": 2})
            caller.join(LONG)
    assert replies == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_notice_wakes_the_caller(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings.SQLQUEUE = {**QUICK, "WAKE": True}
    consuming.consumer("t", lambda delivery: delivery.payload)
    consuming.start()
    left: list[float] = []  # of the call's time, when it has its answer
    look = calls.Call.look

    def note(self: calls.Call) -> bool:
        answer = look(self)
        left.append(self._end - time.monotonic())
        return answer

    monkeypatch.setattr(calls.Call, "pause", lambda self: max(self._end - time.monotonic(), 0.0))
    monkeypatch.setattr(calls.Call, "look", note)
    if kind == "sync":
        call("t", 1, timeout=LONG)
    else:
        in_loop(acall("t", 1, timeout=LONG))
    assert left[-1] > 0  # one that polls is answered at the end of its time


class TestAsync:
    def test_calls_of_one_task_wait_side_by_side(self, consuming: Consuming) -> None:
        together = threading.Barrier(3)  # each handler waits for the others

        def handle(delivery: Any) -> int:
            together.wait(LONG)
            return delivery.payload

        consuming.consumer("t", handle, ordering="none")
        consuming.start(threads=4)

        async def main() -> list[Any]:
            return await asyncio.gather(*(acall("t", number, timeout=LONG) for number in range(3)))

        assert in_loop(main()) == [0, 1, 2]

    def test_a_call_holds_no_thread_while_it_waits(self, consuming: Consuming) -> None:
        begun, go = threading.Event(), consuming.gate()

        def handle(delivery: Any) -> int:
            begun.set()
            go.wait()
            return 7

        consuming.consumer("t", handle)
        consuming.start()

        async def main() -> Any:
            calling = asyncio.ensure_future(acall("t", 1, timeout=LONG))
            await until(begun.is_set)
            await sync_to_async(go.set)()  # in the thread of the database calls
            return await calling

        assert in_loop(main()) == 7

    def test_errors_are_raised_in_the_callers_task(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            raise Reject("no")

        async def main(**options: Any) -> None:
            await acall("t", 1, **options)

        with pytest.raises(TimeoutError):
            in_loop(main(timeout=0))
        consuming.start()
        with pytest.raises(CallFailed, match="no"):
            in_loop(main(timeout=LONG))
        with pytest.raises(InvalidMessage):
            in_loop(main(timeout=-1))


class TestInATestCase(TestCase):
    def setUp(self) -> None:
        made = build("t", {"group": "test", "max_attempts": 1})
        registry.add(replace(made, handler=self.handle))
        self.addCleanup(lambda: registry.consumers.pop(("test", "t")))

    def handle(self, delivery: Any) -> Any:
        if delivery.payload == "bad":
            raise Reject("bad")
        return delivery.payload

    def test_a_call_is_refused_with_what_to_write(self) -> None:
        with pytest.raises(ConfigurationError, match="answering"):
            call("t", 1, timeout=LONG)
        assert published("t") == []

    def test_answering_runs_the_handler(self) -> None:
        with answering():
            assert call("t", {"n": 1}, timeout=LONG) == {"n": 1}
            with pytest.raises(CallFailed, match="bad"):
                call("t", "bad", timeout=LONG)
            assert async_to_sync(acall)("t", 2, timeout=LONG) == 2
        with pytest.raises(ConfigurationError, match="answering"):
            call("t", 1, timeout=LONG)
