"""commit_every: atomic handlers that get one delivery each share transactions."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import Error, IntegrityError, OperationalError, connection, transaction

from sqlqueue import HandOver, NewMessage, Postpone, Reject, Retry, publish_many, subscribe
from sqlqueue.consumers.handlers import atomic as atomic_executor
from sqlqueue.consumers.handlers import runs
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.retries import ErrorKind
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import atomic
from sqlqueue.models import DeliveryState, Message, Offset, Result
from sqlqueue.testing import drain
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming, states
from tests.counting import OF_A_CONNECTION
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction

ONE_PARTITION = {**QUICK, "PARTITIONS": 1, "FLUSH_INTERVAL": 60.0}


@pytest.fixture(autouse=True)
def one_partition(consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    monkeypatch.setattr(runs, "TRANSACTION_LASTS", 30.0)  # a slow machine divides them otherwise


def write(delivery: Any) -> None:
    Effect.objects.create(name="seen", value=str(delivery.payload))


def effects() -> list[int]:
    return [int(value) for value in Effect.objects.filter(name="seen").order_by("id").values_list("value", flat=True)]


class Handler:
    """Writes an effect for each delivery, and then does what `act` does."""

    def __init__(self, consuming: Consuming, act: Callable[[Any], object] = lambda delivery: None, **options: Any):
        self.calls: list[tuple[int, int]] = []  # (payload, attempt)
        self.commits: list[int] = []  # effects after each commit
        self._act = act
        consuming.consumer("t", self, **{"atomic": True, "commit_every": 10, "backoff": 0, **options})

    __qualname__ = "Handler"

    def __call__(self, delivery: Any) -> object:
        self.calls.append((delivery.payload, delivery.attempt))
        write(delivery)
        return self._act(delivery)

    @property
    def attempts(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for payload, attempt in self.calls:
            found.setdefault(payload, set()).add(attempt)
        return found


def acting(numbers: set[int], error: Callable[[], BaseException], first: bool = True) -> Callable[[Any], None]:
    def act(delivery: Any) -> None:
        if delivery.payload in numbers and (delivery.attempt == 1 or not first):
            raise error()

    return act


def settles(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Note the payloads of each atomic settle that is tried."""
    noted: list[list[int]] = []
    settle = atomic.settle_execution

    def note(log, execution, attempts, guard=None):
        noted.append([int(attempt.message.payload) for attempt in attempts])
        return settle(log, execution, attempts, guard)

    monkeypatch.setattr("sqlqueue.consumers.handlers.atomic.settle_execution", note)
    return noted


class TestCommits:
    def test_as_many_as_it_says_share_a_transaction_and_an_ack(self, consuming: Consuming, monkeypatch) -> None:
        settled = settles(monkeypatch)
        Handler(consuming)
        publish_many("t", range(25))
        consuming.drain()
        assert effects() == list(range(25))
        assert settled == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
        assert states("t") == []

    def test_it_takes_no_more_once_it_has_lasted_long_enough(self, consuming: Consuming, monkeypatch) -> None:
        monkeypatch.setattr(runs, "TRANSACTION_LASTS", 0.0)
        settled = settles(monkeypatch)
        Handler(consuming)
        publish_many("t", range(3))
        consuming.drain()
        assert settled == [[0], [1], [2]]

    @pytest.mark.parametrize("ordering", ["key", "partition", "none"])
    def test_each_is_handled_once_and_in_order(self, consuming: Consuming, settings, ordering: str) -> None:
        settings.SQLQUEUE = QUICK
        Handler(consuming, ordering=ordering)
        publish_many("t", [NewMessage(number, key=f"k{number % 5}") for number in range(200)])
        consuming.drain()
        done = effects()
        assert sorted(done) == list(range(200))
        if ordering != "none":
            for key in range(5):
                mine = [number for number in done if number % 5 == key]
                assert mine == sorted(mine)

    def test_statements(self, consuming: Consuming) -> None:
        """Two savepoint statements (none on PostgreSQL), the fence and the position for a hundred; an insert for
        each."""
        statements: list[str] = []

        def record(execute, sql, parameters, many, context):
            statements.append(" ".join(sql.replace('"', "").replace("`", "").split()))
            return execute(sql, parameters, many, context)

        Handler(consuming, commit_every=100)
        publish_many("t", range(100))
        with connection.execute_wrapper(record):
            drain()
        inserts = [number for number, sql in enumerate(statements) if sql.startswith("INSERT INTO app_effect")]
        assert len(inserts) == 100
        assert inserts == list(range(inserts[0], inserts[0] + 100)), "nothing between two handlers"
        after = statements[inserts[-1] + 1 :]
        if connection.vendor != "postgresql":
            assert after.pop(0).startswith("RELEASE SAVEPOINT")
        while any(look in after[0] for look in OF_A_CONNECTION):
            after.pop(0)
        assert after[0].startswith("SELECT position")
        assert after[1].startswith("UPDATE sqlqueue_offset SET position")
        assert not any("INTO sqlqueue_delivery_state" in sql for sql in statements)

    def test_what_it_returns_is_kept_for_each(self, consuming: Consuming) -> None:
        Handler(consuming, lambda delivery: delivery.payload * 2, keep_results=60)
        publish_many("t", range(5))
        consuming.drain()
        assert sorted(Result.objects.values_list("result", flat=True)) == [0, 2, 4, 6, 8]

    def test_hooks_of_one_handler_cost_those_of_others_nothing(self, consuming: Consuming) -> None:
        ran: list[int] = []

        def act(delivery) -> None:
            def hook() -> None:
                if delivery.payload == 1:
                    raise RuntimeError("after the commit")
                ran.append(delivery.payload)

            transaction.on_commit(hook)

        Handler(consuming, act)
        publish_many("t", range(4))
        consuming.drain()
        assert ran == [0, 2, 3]
        assert effects() == [0, 1, 2, 3]

    def test_a_hook_that_ends_its_thread_costs_nothing(self, consuming: Consuming) -> None:
        Handler(consuming, lambda delivery: transaction.on_commit(sys.exit) if delivery.payload == 1 else None)
        publish_many("t", range(4))
        consuming.drain()
        assert effects() == [0, 1, 2, 3]

    def test_what_handlers_publish_is_published_once(self, consuming: Consuming) -> None:
        def act(delivery) -> None:
            with transaction.atomic():
                publish_many("out", [delivery.payload] * 3)
            with suppress(IntegrityError), transaction.atomic():
                write(delivery)
                raise IntegrityError
            if delivery.payload == 3 and delivery.attempt == 1:
                raise ValueError

        Handler(consuming, act)
        publish_many("t", range(6))
        consuming.drain()
        assert sorted(effects()) == list(range(6))
        published = Counter(Message.objects.filter(topic="out").values_list("payload", flat=True))
        assert published == dict.fromkeys(range(6), 3)

    def test_the_reply_is_of_the_call_that_was_committed(self, consuming: Consuming) -> None:
        handler = Handler(consuming, lambda delivery: replies(delivery), keep_results=60)

        def replies(delivery) -> None:
            delivery.reply(len(handler.calls))
            if delivery.payload == 3 and delivery.attempt == 1:
                raise ValueError

        publish_many("t", range(4))
        consuming.drain()
        assert sorted(Result.objects.values_list("result", flat=True)) == [5, 6, 7, 8]

    def test_what_expired_has_no_part_in_it(self, consuming: Consuming, monkeypatch) -> None:
        Handler(consuming)
        publish_many("t", [NewMessage(number, expires=0.001 if number == 2 else None) for number in range(5)])
        threading.Event().wait(0.05)
        consuming.drain()
        assert effects() == [0, 1, 3, 4]
        assert Message.objects.get(topic="t_dlq").last_error == "expired"


class TestFailures:
    @pytest.mark.parametrize("error", [ValueError, SystemExit, Retry, IntegrityError], ids=lambda each: each.__name__)
    def test_the_one_that_raises_is_charged_alone(self, consuming: Consuming, error: type[BaseException]) -> None:
        kinds = {Retry: lambda: Retry(delay=0)}
        handler = Handler(consuming, acting({4}, kinds.get(error, error)))
        publish_many("t", range(10))
        consuming.drain()
        assert handler.attempts == {number: {1} if number != 4 else {1, 2} for number in range(10)}
        assert Counter(payload for payload, _ in handler.calls) == Counter([*range(10), *range(5)])
        assert sorted(effects()) == list(range(10))
        assert states("t") == []
        assert Offset.objects.get(topic="t").position == Message.objects.filter(topic="t").latest("offset").offset

    def test_each_runs_at_most_twice_for_each_that_fails(self, consuming: Consuming) -> None:
        handler = Handler(consuming, acting({7, 23, 24, 61}, ValueError), commit_every=100)
        publish_many("t", range(100))
        consuming.drain()
        assert sorted(effects()) == list(range(100))
        assert len(handler.calls) <= 2 * 100
        assert all(found == {1} for payload, found in handler.attempts.items() if payload not in (7, 23, 24, 61))

    @pytest.mark.parametrize("ordering", ["key", "partition"])
    def test_order_is_kept(self, consuming: Consuming, ordering: str) -> None:
        Handler(consuming, acting({3, 12}, ValueError), ordering=ordering)
        publish_many("t", [NewMessage(number, key=f"k{number % 2}") for number in range(30)])
        consuming.drain()
        done = effects()
        for key in range(2):
            mine = [number for number in done if number % 2 == key]
            assert mine == sorted(mine)
        assert sorted(done) == list(range(30))

    def test_what_is_behind_a_dead_letter_waits_until_that_is_stored(self, consuming: Consuming, monkeypatch) -> None:
        """If the process ended before, it would be delivered after them."""
        with_it: list[int] = []  # what shares its claim, and is committed
        settle = atomic.settle_execution

        def note(log, execution, attempts, guard=None):
            if any(int(attempt.message.payload) == 2 for attempt in execution.attempts):
                with_it.extend(int(attempt.message.payload) for attempt in attempts)
            return settle(log, execution, attempts, guard)

        monkeypatch.setattr(atomic_executor, "settle_execution", note)
        Handler(consuming, acting({2}, lambda: Reject("no")))
        publish_many("t", [NewMessage(number, key=f"k{number % 2}") for number in range(8)])
        consuming.drain()
        assert with_it == [0, 1, 3, 5, 7]
        assert sorted(effects()) == [0, 1, 3, 4, 5, 6, 7]

    def test_reject_and_postpone(self, consuming: Consuming) -> None:
        postponed: list[int] = []

        def act(delivery) -> None:
            if delivery.payload == 2:
                raise Reject("no")
            if delivery.payload == 5 and not postponed:
                postponed.append(5)
                raise Postpone(delay=0)

        handler = Handler(consuming, act)
        publish_many("t", range(8))
        consuming.drain()
        assert sorted(effects()) == [0, 1, 3, 4, 5, 6, 7]
        assert Message.objects.get(topic="t_dlq").payload == 2
        assert all(found == {1} for found in handler.attempts.values())

    def test_what_is_handed_over_is_acked_with_the_others(self, consuming: Consuming, monkeypatch) -> None:
        settled = settles(monkeypatch)
        Handler(consuming, acting({3}, lambda: HandOver("look", form={"n": 1})))
        publish_many("t", range(6))
        consuming.drain()
        assert effects() == list(range(6))
        assert settled == [list(range(6))]
        assert WorkItem.objects.get().payload == 3

    def test_a_result_that_cannot_be_kept_is_its_own_dead_letter(self, consuming: Consuming) -> None:
        Handler(consuming, lambda delivery: object() if delivery.payload == 2 else None, keep_results=60)
        publish_many("t", range(4))
        consuming.drain()
        assert sorted(effects()) == [0, 1, 3]
        assert Message.objects.get(topic="t_dlq").payload == 2

    def test_a_swallowed_error_is_the_one_that_swallowed_it(self, consuming: Consuming) -> None:
        """And not the next one, whose statements the database refuses."""
        Effect.objects.create(id=10_000, name="there")

        def act(delivery) -> None:
            if delivery.payload == 3 and delivery.attempt == 1:
                with suppress(Error):
                    Effect.objects.create(id=10_000, name="again")

        handler = Handler(consuming, act)
        publish_many("t", range(6))
        consuming.drain()
        assert handler.attempts == {number: {1, 2} if number == 3 else {1} for number in range(6)}
        assert sorted(effects()) == list(range(6))

    @pytest.mark.database("mariadb", "mysql")
    def test_ddl_that_has_committed_is_found(self, consuming: Consuming) -> None:
        """Which of them it was shows only when it is alone."""

        def act(delivery) -> None:
            if delivery.payload == 3:
                LOG.execute("CREATE TABLE IF NOT EXISTS made_by_a_handler (n INT)")
                LOG.execute("DROP TABLE IF EXISTS made_by_a_handler")

        handler = Handler(consuming, act, max_attempts=1)
        publish_many("t", range(6))
        consuming.drain()
        assert "its transaction had ended before" in Message.objects.get(topic="t_dlq").last_error
        assert all(found == {1} for found in handler.attempts.values())
        assert set(effects()) >= {0, 1, 2, 4, 5}

    @pytest.mark.parametrize("times", [1, 3])
    def test_a_deadlock_charges_none(self, consuming: Consuming, monkeypatch, times: int) -> None:
        met: list[int] = []

        def act(delivery) -> None:
            if delivery.payload == 3 and len(met) < times:
                met.append(1)
                raise OperationalError("a deadlock")

        monkeypatch.setattr(retries, "classify", lambda error: ErrorKind.CONTENTION)
        handler = Handler(consuming, act)
        publish_many("t", range(8))
        consuming.drain()
        assert sorted(effects()) == list(range(8))
        assert all(found == {1} for found in handler.attempts.values())

    def test_an_ack_that_fails_is_divided(self, consuming: Consuming, monkeypatch) -> None:
        """As a deferred constraint at the commit, whose error does not name the message."""
        settle = atomic.settle_execution

        def refuse(log, execution, attempts, guard=None):
            if any(attempt.message.payload in (3, "3") for attempt in attempts):
                raise IntegrityError("deferred")
            return settle(log, execution, attempts, guard)

        monkeypatch.setattr("sqlqueue.consumers.handlers.atomic.settle_execution", refuse)
        handler = Handler(consuming, max_attempts=2)
        publish_many("t", range(8))
        consuming.drain()
        assert sorted(effects()) == [0, 1, 2, 4, 5, 6, 7]
        assert handler.attempts == {number: {1, 2} if number == 3 else {1} for number in range(8)}
        assert Message.objects.get(topic="t_dlq").payload == 3

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_what_an_operator_settles_meanwhile_costs_the_others_nothing(self, consuming: Consuming) -> None:
        def settle(offset: int) -> None:
            place = {"topic": "t", "consumer_group": "default", "partition": 0, "priority": 0}
            DeliveryState.objects.create(**place, message_offset=offset, acked=True, retry_count=1)

        def act(delivery) -> None:
            if delivery.payload == 0:  # so that the others need rows
                raise Postpone(delay=3600)
            if delivery.payload == 3 and not DeliveryState.objects.filter(acked=True).exists():
                with OpenTransaction() as other:
                    other.do(lambda: settle(delivery.offset))
                    other.commit()

        handler = Handler(consuming, act)
        publish_many("t", range(6))
        host = consuming.start()
        wait_until(lambda: effects() == [1, 2, 4, 5])
        host.stop()
        assert all(found == {1} for found in handler.attempts.values())


class TestTime:
    @pytest.mark.database("mariadb", "mysql", "postgresql")  # on SQLite the stray holds the only lock that writes
    def test_an_overrun_is_charged_alone_and_the_stray_commits_nothing(self, consuming: Consuming) -> None:
        gate = consuming.gate()
        returned = threading.Event()

        def act(delivery) -> None:
            if delivery.payload == 3 and delivery.attempt == 1:
                gate.wait()
                returned.set()

        handler = Handler(consuming, act, visibility_timeout=1.0)
        publish_many("t", range(6))
        host = consuming.start()
        wait_until(lambda: sorted(effects()) == list(range(6)))
        gate.set()
        wait_until(returned.is_set)
        wait_until(lambda: Offset.objects.get(topic="t").offset_acked == Message.objects.latest("offset").offset)
        host.stop()
        assert sorted(effects()) == list(range(6))
        assert handler.attempts == {number: {1, 2} if number == 3 else {1} for number in range(6)}

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_an_ack_that_never_ends_overruns(self, consuming: Consuming, monkeypatch) -> None:
        gate, first = consuming.gate(), [True]
        settle = atomic.settle_execution

        def hang(log, execution, attempts, guard=None):
            if first and first.pop():
                gate.wait()
            return settle(log, execution, attempts, guard)

        monkeypatch.setattr("sqlqueue.consumers.handlers.atomic.settle_execution", hang)
        handler = Handler(consuming, visibility_timeout=1.0)
        publish_many("t", range(4))
        host = consuming.start()
        wait_until(lambda: sorted(effects()) == list(range(4)))
        gate.set()
        host.stop()
        assert sorted(effects()) == list(range(4))
        assert handler.attempts == {0: {1}, 1: {1}, 2: {1}, 3: {1, 2}}

    def test_a_commit_that_comes_while_its_overrun_is_decided_is_the_only_one(
        self, consuming: Consuming, monkeypatch
    ) -> None:
        taken: list[Any] = []

        part = atomic_executor.part_commit_hooks
        settle = atomic.settle_execution

        def remember(log, execution, attempts, guard=None):
            moved = settle(log, execution, attempts, guard)
            taken.append(attempts[-1])
            return moved

        def wait(log: Log) -> None:
            if len(taken) == 1:
                wait_until(lambda: taken[0].outcome is not None)
            part(log)

        monkeypatch.setattr(atomic_executor, "settle_execution", remember)
        monkeypatch.setattr(atomic_executor, "part_commit_hooks", wait)
        Handler(consuming, visibility_timeout=1.0)
        publish_many("t", range(4))
        host = consuming.start()
        end = Message.objects.latest("offset").offset
        wait_until(lambda: Offset.objects.filter(topic="t", offset_acked=end).exists())
        host.stop()
        assert effects() == list(range(4))

    def test_a_stop_commits_what_has_run_and_hands_back_the_rest(self, consuming: Consuming) -> None:
        gate, reached = consuming.gate(), threading.Event()

        def act(delivery) -> None:
            if delivery.payload == 3:
                reached.set()
                gate.wait()

        Handler(consuming, act)
        publish_many("t", range(8))
        host = consuming.start()
        wait_until(reached.is_set)
        host.subscriber.stop()
        wait_until(lambda: all(execution.stopped for execution in list(host.subscriber.in_flight.executions)))
        gate.set()
        host.join()
        assert effects() == [0, 1, 2, 3]
        assert not DeliveryState.objects.exclude(retry_count=0).exists()
        offsets = list(Message.objects.filter(topic="t").order_by("offset").values_list("offset", flat=True))
        assert Offset.objects.get(topic="t").position == offsets[3]


@pytest.mark.django_db(transaction=True)
class TestDrain:
    def test_it_is_as_in_production(self, consuming: Consuming) -> None:
        handler = Handler(consuming, acting({3}, ValueError))
        publish_many("t", range(8))
        assert drain() == 9
        assert sorted(effects()) == list(range(8))
        assert handler.attempts[3] == {1, 2}

    def test_the_first_error_ends_it(self, consuming: Consuming) -> None:
        handler = Handler(consuming, acting({3}, ValueError))
        publish_many("t", range(8))
        with pytest.raises(ValueError):  # noqa: PT011  it has no text
            drain(raise_errors=True)
        assert effects() == []
        assert [payload for payload, _ in handler.calls] == [0, 1, 2, 3]
        drain()
        assert sorted(effects()) == list(range(8))


@pytest.mark.django_db
def test_a_drain_inside_a_test_case(consuming: Consuming) -> None:
    Handler(consuming, acting({3}, ValueError))
    publish_many("t", range(8))
    drain()
    assert sorted(effects()) == list(range(8))


def test_a_pull_loop_refuses_it(consuming: Consuming) -> None:
    with pytest.raises(ConfigurationError, match="leave commit_every out"), subscribe("t", commit_every=10):
        pass
