"""status.wait(): it returns when every group is done, wakes by a notice, and polls without one."""

import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.test import TestCase

from sqlqueue import ConfigurationError, InvalidMessage, Reject, get_status, publish
from sqlqueue.consumers.declare.registry import build, registry
from sqlqueue.core.outcomes import ACKED, RETRIED, Outcome
from sqlqueue.core.settle_plan import Attempt, SettledAttempt
from sqlqueue.database.transactions import in_test_case
from sqlqueue.log import groups
from sqlqueue.log.notifier import Listener
from sqlqueue.log.settle_notices import MOST_ASKED, MOST_QUESTIONS, Questions
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations.replay import discard
from sqlqueue.stats.message_status import MessageStatus
from sqlqueue.testing import drain
from tests.asynchronous.loops import in_loop
from tests.consuming import QUICK, Consuming
from tests.factories import MessageValueFactory
from tests.logs import LOG
from tests.processes import wait_until

DAY = timedelta(days=1)
LONG = 60  # seconds: a wait that ends sooner was woken
WAKING = {**QUICK, "WAKE": True, "IDLE_POLL_INTERVAL": 20.0, "BALANCE_INTERVAL": 0.1}


def status_of(id: str = "a") -> MessageStatus:
    status = get_status("t", id=id)
    assert status is not None
    return status


def in_a_thread(work: Any) -> "threading.Thread":
    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class TestEnd:
    def test_it_returns_the_status_of_then(self, consuming: Consuming) -> None:
        go = consuming.gate()

        @consuming.consumer("t", keep_results=DAY)
        def handle(delivery: Any) -> int:
            assert go.wait(LONG)
            return 7

        publish("t", 1, id="a")
        consuming.start()
        before = status_of()
        assert not before.finished
        threading.Timer(0.2, go.set).start()
        after = before.wait(timeout=LONG)
        assert (after.groups["default"].state, after.groups["default"].result) == ("acked", 7)
        assert not before.finished

    def test_it_waits_for_every_group(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        groups.register(LOG, "away", "t")
        publish("t", 1, id="a")
        consuming.drain()
        with pytest.raises(TimeoutError, match=r"not settled in every group after 0\.05"):
            status_of().wait(timeout=0.05)

    def test_a_dead_one_is_finished(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            raise Reject("no")

        publish("t", 1, id="a")
        status = status_of()
        consuming.drain()
        assert status.wait(timeout=0).groups["default"].error == "no"

    def test_without_a_group_it_is_not_finished(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        with pytest.raises(TimeoutError):
            status_of().wait(timeout=0)

    def test_a_scheduled_one_is_waited_for_through_the_log(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: "done", keep_results=DAY)
        consuming.start()
        publish("t", 1, id="a", delay=0.3)
        scheduled = status_of()
        assert scheduled.offset is None
        assert scheduled.wait(timeout=LONG).groups["default"].result == "done"

    def test_one_that_was_cancelled_meanwhile_is_never_finished(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        publish("t", 1, id="a", delay=DAY)
        scheduled = status_of()
        ScheduledMessage.objects.all().delete()
        with pytest.raises(TimeoutError):
            scheduled.wait(timeout=0.05)

    @pytest.mark.parametrize("dead", [False, True], ids=["acked", "dead"])
    def test_one_that_was_collected_meanwhile_is_finished(self, consuming: Consuming, dead: bool) -> None:
        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            if dead:
                raise Reject("no")

        publish("t", 1, id="a", key="k")
        groups.register(LOG, "default", "t")
        status = get_status("t", id="a", key="k")
        assert status is not None
        consuming.drain()
        Message.objects.filter(topic="t").delete()
        group = status.wait(timeout=0).groups["default"]
        assert (group.state, group.error) == (("dead", "no") if dead else ("acked", ""))
        discard("t")

    @pytest.mark.parametrize("timeout", [-1, "1", None, float("nan")], ids=repr)
    def test_a_timeout_that_makes_no_sense_is_refused(self, consuming: Consuming, timeout: Any) -> None:
        publish("t", 1, id="a")
        with pytest.raises(InvalidMessage, match="timeout must"):
            status_of().wait(timeout=timeout)


class TestRefused:
    def test_in_the_transaction_that_published(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        with transaction.atomic():
            publish("t", 1, id="a")
            with pytest.raises(ConfigurationError, match="after the commit"):
                status_of().wait(timeout=LONG)

    def test_on_an_event_loop_it_says_what_to_write(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        publish("t", 1, id="a")
        status = status_of()
        consuming.drain()

        async def ask() -> MessageStatus:
            with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
                status.wait(timeout=1)
            return await sync_to_async(status.wait)(timeout=1)

        assert in_loop(ask()).finished


class TestInATestCase(TestCase):
    def test_drain_comes_first(self) -> None:
        groups.register(LOG, "default", "t")
        publish("t", 1, id="a")
        assert in_test_case(connections["default"])
        with pytest.raises(ConfigurationError, match="drain"):
            status_of().wait(timeout=LONG)

    def test_after_drain_there_is_nothing_to_wait_for(self) -> None:
        for name in ("plain", "atomic"):
            made = build("t", {"group": name, "atomic": name == "atomic", "keep_results": 60})
            registry.add(replace(made, handler=lambda delivery: delivery.payload))
        try:
            publish("t", 1, id="a")
            drain(topics=["t"])
        finally:
            for name in ("plain", "atomic"):
                del registry.consumers[name, "t"]
        after = status_of().wait(timeout=0)
        assert {name: each.result for name, each in after.groups.items()} == {"plain": 1, "atomic": 1}


class TestNotices:
    def test_a_settle_wakes_it_without_polling(self, consuming: Consuming, settings: object) -> None:
        """The wait begins with polls; by the time of the settle it would not poll for another 20 seconds."""
        settings.SQLQUEUE = {**WAKING, "POLL_INTERVAL": 20.0}
        started, go = threading.Event(), consuming.gate()

        @consuming.consumer("t", keep_results=DAY)
        def handle(delivery: Any) -> int:
            started.set()
            assert go.wait(LONG)
            return 7

        publish("t", 1, id="a")
        host = consuming.start()
        assert started.wait(LONG)
        ended: list[float] = []
        status = status_of()
        thread = in_a_thread(lambda: ended.append((status.wait(timeout=LONG), time.monotonic())[1]))
        wait_until(lambda: host.subscriber.settler.questions)
        begun = time.monotonic()
        go.set()
        thread.join(LONG)
        assert ended[0] - begun < 10

    @pytest.mark.once
    def test_one_question_is_worth_one_notice(self) -> None:
        questions, sent = Questions(), []
        questions.send = sent.append
        questions.add(b"7", ("127.0.0.1", 1))
        questions.add(b"7", ("127.0.0.1", 2))
        questions.answer([settled(8), settled(7, RETRIED)])
        assert sent == []
        questions.answer([settled(7), settled(7)])
        assert sorted(sent) == [("127.0.0.1", 1), ("127.0.0.1", 2)]
        assert not questions

    @pytest.mark.once
    @pytest.mark.parametrize("question", [b"", b"x", b"-1", b"1 ", b"9" * 20, b"\xd9\xa3"], ids=repr)
    def test_what_is_no_offset_is_no_question(self, question: bytes) -> None:
        questions = Questions()
        questions.add(question, ("127.0.0.1", 1))
        assert not questions

    @pytest.mark.once
    def test_a_flood_of_questions_is_bounded_and_old_ones_make_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        questions = Questions()
        for offset in range(MOST_QUESTIONS + 100):
            questions.add(b"%d" % offset, ("127.0.0.1", 1))
        assert len(questions) == MOST_QUESTIONS
        for port in range(1, MOST_ASKED + 10):
            questions.add(b"0", ("127.0.0.1", port))
        sent: list[object] = []
        questions.send = sent.append
        questions.answer([settled(0)])
        assert len(sent) == MOST_ASKED
        questions.add(b"0", ("127.0.0.1", 1))  # as many as before
        plain = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: plain() + 100)
        questions.add(b"99999", ("127.0.0.1", 1))
        assert len(questions) == 1

    @pytest.mark.once
    def test_a_listener_tells_questions_from_notifications(self) -> None:
        notified, asked = threading.Event(), threading.Event()
        listener = Listener("127.0.0.1", notified.set, lambda question, sender: question.isdigit() and not asked.set())
        host, port = listener.address.split(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"7", (host, int(port)))
            assert asked.wait(LONG)
            assert not notified.is_set()
            one.sendto(b"", (host, int(port)))
            assert notified.wait(LONG)
        listener.close()


def settled(offset: int, kind: str = ACKED) -> SettledAttempt:
    return SettledAttempt(Attempt(None, MessageValueFactory(offset=offset), 1), Outcome(kind))
