"""atomic=True: the handler's writes and its ack are one transaction; either both are there, or neither."""

import threading

import pytest
from django.db import OperationalError, connection, connections, transaction

from sqlqueue import LeaseLost, NewMessage, Reject, Retry, publish, publish_many
from sqlqueue.consumers.handlers import atomic as atomic_executor
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.log import atomic
from sqlqueue.log.groups import revoke
from sqlqueue.models import DeliveryState, Message, Offset
from sqlqueue.signals import delivery_settled, lease_lost
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming, Host, offset_row, states
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.session import connection_id, end_connection

ONE_PARTITION = {**QUICK, "PARTITIONS": 1}
BATCH = pytest.mark.parametrize("batch", [False, True], ids=["each", "batch"])


def numbers_of(given) -> list[int]:
    return [delivery.payload for delivery in (given if isinstance(given, list) else [given])]


def effects() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("value", flat=True))


def record(given) -> None:
    Effect.objects.bulk_create(Effect(name="seen", value=str(number)) for number in numbers_of(given))


@BATCH
class TestTogether:
    def test_writes_and_ack_are_there_together(self, consuming: Consuming, batch: bool) -> None:
        consuming.consumer("t", record, atomic=True, batch=batch)
        publish_many("t", [NewMessage(number, key=f"k{number % 5}") for number in range(60)])
        consuming.drain()
        consuming.drain()
        assert sorted(map(int, effects())) == list(range(60))
        assert states("t") == []

    def test_it_runs_in_a_transaction(self, consuming: Consuming, batch: bool) -> None:
        inside: list[bool] = []
        consuming.consumer("t", lambda given: inside.append(connection.in_atomic_block), atomic=True, batch=batch)
        publish("t", 1)
        consuming.drain()
        assert inside == [True]

    @pytest.mark.parametrize("error", [ValueError("no"), Retry(delay=0), Reject("no"), SystemExit(1)], ids=repr)
    def test_a_handler_that_raises_leaves_nothing(self, consuming: Consuming, batch: bool, error) -> None:
        @consuming.consumer("t", atomic=True, batch=batch, max_attempts=1)
        def handle(given) -> None:
            record(given)
            publish("other", "from the handler")
            raise error

        publish("t", 1)
        consuming.drain()
        assert effects() == []
        assert not Message.objects.filter(topic="other").exists()
        assert Message.objects.filter(topic="t_dlq").count() == 1

    def test_what_it_publishes_is_committed_with_it(self, consuming: Consuming, batch: bool) -> None:
        @consuming.consumer("t", atomic=True, batch=batch)
        def handle(given) -> None:
            for number in numbers_of(given):
                publish("next", number + 1)

        publish_many("t", [1, 2, 3])
        consuming.drain()
        published = Message.objects.filter(topic="next").values_list("payload", flat=True)
        assert sorted(published) == [2, 3, 4]

    def test_a_commit_hook_that_fails_undoes_nothing(self, consuming: Consuming, batch: bool) -> None:
        def hook() -> None:
            raise RuntimeError("after the commit")

        @consuming.consumer("t", atomic=True, batch=batch)
        def handle(given) -> None:
            record(given)
            transaction.on_commit(hook)

        publish("t", 1)
        consuming.drain()
        consuming.drain()
        assert effects() == ["1"]

    def test_a_deadlock_in_it_is_run_again_whole(self, consuming: Consuming, batch: bool, monkeypatch) -> None:
        """Rolled back by the database, so the handler is simply run again: no attempt is charged."""
        attempts: list[int] = []

        @consuming.consumer("t", atomic=True, batch=batch)
        def handle(given) -> None:
            record(given)
            attempts.append(given[0].attempt if batch else given.attempt)
            if len(attempts) == 1:
                raise OperationalError("a deadlock")

        monkeypatch.setattr(retries, "classify", lambda error: ErrorKind.CONTENTION)
        publish("t", 1)
        consuming.drain()
        assert (attempts, effects()) == ([1, 1], ["1"])

    def test_one_that_deadlocks_again_and_again_has_failed_an_attempt(
        self, consuming: Consuming, batch: bool, monkeypatch
    ) -> None:
        attempts: list[int] = []

        @consuming.consumer("t", atomic=True, batch=batch, backoff=0)
        def handle(given) -> None:
            record(given)
            attempts.append(given[0].attempt if batch else given.attempt)
            if len(attempts) <= atomic_executor.TRIES:
                raise OperationalError("a deadlock")

        monkeypatch.setattr(retries, "classify", lambda error: ErrorKind.CONTENTION)
        publish("t", 1)
        consuming.drain()
        assert (attempts, effects()) == ([1] * atomic_executor.TRIES + [2], ["1"])
        assert states("t") == []

    def test_a_lease_that_is_lost_while_it_runs_rolls_it_back(self, consuming: Consuming, batch: bool) -> None:
        """Who takes the partition in the handler's own transaction: as if another process had, only certain."""
        lost, outcomes, runs = [], [], []

        def hear_lost(**facts: object) -> None:
            lost.append(facts["topic"])

        def hear_settled(*, outcome: str, **_: object) -> None:
            outcomes.append(outcome)

        @consuming.consumer("t", atomic=True, batch=batch)
        def handle(given) -> None:
            record(given)
            runs.append(numbers_of(given))
            if len(runs) == 1:
                revoke(LOG, "default", "t")

        lease_lost.connect(hear_lost)
        delivery_settled.connect(hear_settled)
        try:
            publish("t", 1)
            host = consuming.start()
            wait_until(lambda: effects() == ["1"])
            host.stop()
        finally:
            lease_lost.disconnect(hear_lost)
            delivery_settled.disconnect(hear_settled)
        # The revocation was rolled back with the handler, so the same owner delivers it again.
        assert len(runs) == 2
        assert outcomes == ["acked"]

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_a_partition_taken_by_another_while_it_runs_rolls_it_back(self, consuming: Consuming, batch: bool) -> None:
        lost, runs = [], []

        def hear_lost(**facts: object) -> None:
            lost.append(facts["topic"])

        def take() -> None:
            with transaction.atomic():
                revoke(LOG, "default", "t")
            connections.close_all()

        @consuming.consumer("t", atomic=True, batch=batch)
        def handle(given) -> None:
            record(given)
            runs.append(numbers_of(given))
            if len(runs) == 1:
                thief = threading.Thread(target=take)
                thief.start()
                thief.join()

        lease_lost.connect(hear_lost)
        try:
            publish("t", 1)
            consuming.start()
            wait_until(lambda: effects() == ["1"])
        finally:
            lease_lost.disconnect(hear_lost)
        assert len(runs) == 2
        assert lost == ["t"]
        consuming.drain()
        assert effects() == ["1"]


class TestThePosition:
    @pytest.mark.parametrize("keys", [1, 3, 30])
    @pytest.mark.parametrize("ordering", ["key", "none"])
    def test_a_batch_from_the_position_to_the_horizon_moves_it_itself(
        self, consuming: Consuming, settings, monkeypatch, keys: int, ordering: str
    ) -> None:
        """In the handler's own transaction, and without a row for each message."""
        settings.SQLQUEUE = {**ONE_PARTITION, "FLUSH_INTERVAL": 60.0}  # a slow handler's would get a row
        positions: list[tuple[int, int, int]] = []
        settle_execution = atomic.settle_execution

        def watched(alias, run, attempts, guard):
            moved = settle_execution(alias, run, attempts, guard)
            positions.append((len(attempts), Offset.objects.get().position, DeliveryState.objects.count()))
            return moved

        monkeypatch.setattr("sqlqueue.consumers.handlers.atomic.settle_execution", watched)
        consuming.consumer("t", record, atomic=True, batch=True, batch_size=10, ordering=ordering)
        publish_many("t", [NewMessage(number, key=f"k{number % keys}") for number in range(30)])
        offsets = list(Message.objects.order_by("offset").values_list("offset", flat=True))
        # Without a collector, whose own probe may hold the gate just when the consumer looks at the horizon.
        Host(consuming.subscriber(background_tasks=False), drain=True).join()
        assert positions == [(10, offsets[9], 0), (10, offsets[19], 0), (10, offsets[29], 0)]
        row = offset_row("t")
        assert (row.position, row.offset_acked) == (offsets[-1], offsets[-1])

    def test_a_batch_that_cannot_writes_rows_which_go_when_the_position_passes(
        self, consuming: Consuming, settings
    ) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        failed: list[int] = []

        @consuming.consumer("t", atomic=True, batch=True, batch_size=4, backoff=0)
        def handle(given) -> None:
            record(given)
            if 0 in numbers_of(given) and len(failed) < 3:
                failed.append(0)
                raise ValueError

        publish_many("t", [NewMessage(number, key=f"k{number}") for number in range(12)])
        last = Message.objects.order_by("-offset").values_list("offset", flat=True)[0]
        consuming.drain()
        assert sorted(map(int, effects())) == list(range(12))
        assert states("t") == []
        assert offset_row("t").offset_acked == last

    def test_messages_acked_one_by_one_leave_no_rows_when_all_is_done(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        consuming.consumer("t", record, atomic=True)
        publish_many("t", [NewMessage(number, key=f"k{number % 7}") for number in range(50)])
        consuming.drain()
        assert states("t") == []


class TestTheFence:
    """An atomic settle is refused if the tables say that this is not the present attempt of the present owner."""

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE sqlqueue_offset SET fencing_token = fencing_token + 1",
            "UPDATE sqlqueue_delivery_state SET retry_count = retry_count + 1",
            "UPDATE sqlqueue_delivery_state SET in_flight = 0",
            "UPDATE sqlqueue_delivery_state SET acked = {true}",
            "DELETE FROM sqlqueue_delivery_state",
        ],
    )
    def test_a_redelivery_whose_row_says_otherwise(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch, statement: str
    ) -> None:
        refused: list[str] = []
        settle_execution = atomic.settle_execution

        def watched(alias, run, attempts, guard):
            try:
                return settle_execution(alias, run, attempts, guard)
            except LeaseLost as error:
                refused.append(str(error))
                raise

        monkeypatch.setattr("sqlqueue.consumers.handlers.atomic.settle_execution", watched)
        attempts: list[int] = []

        @consuming.consumer("t", atomic=True, backoff=0)
        def handle(delivery) -> None:
            attempts.append(delivery.attempt)
            if len(attempts) == 1:
                raise ValueError
            record(delivery)
            if len(attempts) == 2:
                LOG.execute(statement)  # in the handler's own transaction: seen by its settle, then rolled back

        publish("t", 1)
        host = consuming.start()
        wait_until(lambda: refused)
        host.stop()
        assert attempts == [1, 2]
        assert effects() == []


@BATCH
@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.session
def test_a_connection_that_was_lost_unnoticed_costs_no_attempt(consuming: Consuming, batch: bool) -> None:
    connection_ids: list[int] = []

    @consuming.consumer("t", atomic=True, batch=batch, max_attempts=1)
    def handle(given) -> None:
        connection_ids.append(connection_id())
        record(given)

    consuming.start(threads=1)
    publish("t", 1)
    wait_until(lambda: effects() == ["1"])
    end_connection(connection_ids[0])
    publish("t", 2)
    wait_until(lambda: effects() == ["1", "2"] or Message.objects.filter(topic="t_dlq").exists())
    assert effects() == ["1", "2"], "the message died of a connection that its handler never saw"
    assert connection_ids[1] != connection_ids[0]
