"""However heavy messages and errors are: no statement is longer than the server takes, and none holds up another."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import DatabaseError, connection, connections, transaction

from sqlqueue import InvalidMessage, NewMessage, publish, publish_many, publish_on_commit, replay
from sqlqueue.conf import settings as options
from sqlqueue.core.outcomes import ERROR_LENGTH
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import packet
from sqlqueue.log.schedule import move_due
from sqlqueue.models import DeliveryState, Message, Receipt, ScheduledMessage
from sqlqueue.operations.reschedule import republish
from tests.app.models import Effect
from tests.consuming import Consuming
from tests.logs import LOG
from tests.refusing import refusing
from tests.servers.private import PrivateServer
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

PACKET = 1024 * 1024
HEAVY = PACKET - 6_000  # characters that just go into one statement, but not with an error beside them


@contextmanager
def taking(size: int) -> Iterator[None]:
    """Let the server take statements of so many bytes; SQLite and PostgreSQL take them of any reasonable length."""
    if connection.vendor != "mysql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        (before,) = cursor.fetchone()
        cursor.execute("SET GLOBAL max_allowed_packet = %s", [size])
    connections.close_all()
    try:
        yield
    finally:
        connections.close_all()
        with connection.cursor() as cursor:
            cursor.execute("SET GLOBAL max_allowed_packet = %s", [before])
        connections.close_all()


@pytest.fixture(autouse=True)
def small_packets(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[None]:
    if connection.vendor == "mysql":
        request.getfixturevalue("database_server")  # whose settings are ours to change
    with taking(PACKET):
        yield


def log(topic: str) -> list[object]:
    return [message.payload for message in Message.objects.filter(topic=topic).order_by("offset")]


def insert(topic: str, payload: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO sqlqueue_scheduled_message (topic, payload) VALUES (%s, %s)", [topic, payload])


def move_all() -> None:
    while move_due(LOG):
        pass


class TestManyTogether:
    def test_messages_that_are_due_enter_the_log_in_their_order(self) -> None:
        payloads = [f"{number}" * 40_000 for number in range(8)] * 8
        for payload in payloads:
            publish("t", payload, key="k", delay=0)
        publish("other", 1, delay=0)
        move_all()
        assert log("t") == payloads
        assert log("other") == [1]

    @pytest.mark.parametrize("ids", [True, False])
    def test_a_bulk_is_published_in_one_transaction(self, ids: bool) -> None:
        bulk = [NewMessage("x" * 200_000, key="k", id=f"m{number}" if ids else None) for number in range(20)]
        with OpenTransaction() as other:
            assert other.do(lambda: publish_many("t", bulk)).created == 20
            if connection.vendor != "sqlite":
                assert not Message.objects.exists()
            other.rollback()
        assert not Message.objects.exists()
        assert publish_many("t", bulk).created == 20
        assert publish_many("t", bulk).created == (0 if ids else 20)

    def test_a_bulk_that_fails_at_its_end_has_published_nothing(self) -> None:
        publish("t", "so that the topic is there")
        bulk = [NewMessage("x" * 200_000, key="k", id=f"m{number}") for number in range(20)]
        with refusing("m19"), pytest.raises(DatabaseError):
            publish_many("t", bulk)
        assert Message.objects.count() == 1

    def test_ids_of_the_longest_kind(self) -> None:
        bulk = [NewMessage(number, key="✈" * 255, id=f"{'✈' * 250}{number:05}") for number in range(1_000)]
        assert publish_many("t", bulk).created == 1_000
        assert publish_many("t", bulk).created == 0

    @pytest.mark.parametrize("character", ["x", "'", "✈"])
    def test_long_errors_of_a_batch_are_all_kept(self, consuming: Consuming, character: str) -> None:
        @consuming.consumer("t", batch=True, batch_size=500, ordering="none", backoff=1_000, max_backoff=1_000)
        def fail(deliveries) -> None:
            raise ValueError(character * 9_000)

        served = []
        consuming.consumer("other", lambda delivery: served.append(delivery.offset))
        publish_many("t", [NewMessage(number, key="k") for number in range(500)])
        publish("other", 1)
        consuming.drain()
        assert DeliveryState.objects.filter(acked=False, last_error__contains=character * 8_000).count() == 500
        assert len(served) == 1

    def test_receipts_of_many(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {"history": "all", "partitions": 1}}}
        consuming.consumer("t", lambda deliveries: None, batch=True, batch_size=5_000)
        publish_many("t", range(5_000))
        consuming.drain()
        assert Receipt.objects.count() == 5_000


class TestOneThatIsTooHeavyForItsCopy:
    """The server copies it itself."""

    @pytest.fixture
    def dead(self, consuming: Consuming) -> Message:
        """A dead letter of which neither its payload with its error, nor its payload twice, goes into a statement."""
        served = []
        consuming.consumer("other", lambda delivery: served.append(delivery.offset))

        @consuming.consumer("t", max_attempts=1)
        def fail(delivery) -> None:
            if len(seen) < 1:
                seen.append(delivery.payload)
                raise ValueError("x" * 100_000)
            again.append((delivery.payload, delivery.headers, delivery.key))

        seen: list[object] = []
        again = self.again = []
        publish("t", "a" * HEAVY, key="k", headers={"h": 1})
        publish("other", 1)
        consuming.drain()
        assert len(served) == 1
        return Message.objects.get(topic="t_dlq")

    def test_a_dead_letter(self, dead: Message) -> None:
        assert dead.payload == "a" * HEAVY
        assert (dead.headers, dead.partition_key, dead.failed_group) == ({"h": 1}, "k", "default")
        assert dead.last_error is not None
        assert dead.last_error.startswith("… ")
        assert len(dead.last_error) <= ERROR_LENGTH + 2

    def test_its_replay(self, consuming: Consuming, dead: Message) -> None:
        assert replay("t") == 1
        assert not Message.objects.filter(topic="t_dlq").exists()
        consuming.drain()
        assert self.again == [("a" * HEAVY, {"h": 1}, "k")]

    @pytest.mark.parametrize("delay", [0, 0.001])
    def test_its_republished_copy(self, consuming: Consuming, dead: Message, delay: float) -> None:
        first = Message.objects.get(topic="t")
        assert republish("t", "default", [first.offset], delay=delay) == 1
        move_all()
        consuming.drain()
        assert self.again == [("a" * HEAVY, {"h": 1}, "k")]

    def test_heavy_ones_and_light_ones_keep_their_order(self) -> None:
        payloads = ["before", "a" * HEAVY, "between", "b" * HEAVY, "c" * 100_000, "behind"]
        for payload in payloads:
            publish("t", payload, key="k", headers={"h": 1}, delay=0)
        move_all()
        assert log("t") == payloads
        assert set(Message.objects.values_list("partition_key", flat=True)) == {"k"}
        assert [message.headers for message in Message.objects.all()] == [{"h": 1}] * 6
        assert not ScheduledMessage.objects.exists()

    def test_an_id_that_is_in_the_log_already_is_no_second_message(self) -> None:
        publish("t", "first", id="x")
        publish("t", "a" * HEAVY, id="x", delay=0)
        publish("t", "b" * HEAVY, id="y", delay=0)
        publish("t", "c" * HEAVY, id="y", delay=0)
        move_all()
        assert log("t") == ["first", "b" * HEAVY]
        assert not ScheduledMessage.objects.exists()

    def test_a_dead_letter_whose_message_was_discarded_meanwhile_stops_no_other(self, consuming: Consuming) -> None:
        @consuming.consumer("t", max_attempts=1)
        def fail(delivery) -> None:
            Message.objects.filter(offset=delivery.offset).delete()
            raise ValueError

        publish("t", "a" * HEAVY)
        consuming.drain()
        assert not Message.objects.exists()


SENDERS = {
    "publish": publish,
    "later": lambda topic, payload, **more: publish(topic, payload, delay=1, **more),
    "many": lambda topic, payload, **more: publish_many(topic, [1, NewMessage(payload, **more)]),
    "on commit": publish_on_commit,
}


class TestOneThatIsTooHeavyAtAll:
    @pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS.keys())
    @pytest.mark.parametrize(
        ("payload", "headers"),
        [("x" * 999, None), ("✈" * 333, None), ('"' * 500, None), (1, {"h": "x" * 992}), ("x" * 500, {"h": "x" * 491})],
    )
    def test_a_payload_over_the_setting_is_refused(self, settings, send, payload: object, headers: dict | None) -> None:
        settings.SQLQUEUE = {"MAX_PAYLOAD_BYTES": 1_000}
        self.refused(send, "1000 is the most", payload, headers=headers)

    def test_a_payload_of_just_the_setting_is_taken(self, settings) -> None:
        settings.SQLQUEUE = {"MAX_PAYLOAD_BYTES": 1_000}
        publish("t", "x" * 998)
        publish("t", [1] * 498 + [11], delay=0)  # stored with spaces, it is longer
        publish_many("t", [NewMessage("x" * 500, headers={"h": "x" * 490})])
        move_all()
        assert Message.objects.count() == 3

    @pytest.mark.database("mariadb", "mysql")
    @pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS.keys())
    @pytest.mark.parametrize("character", ["x", '"', "✈"])
    def test_what_the_server_does_not_take_at_once_is_refused_before_it_is_sent(self, send, character: str) -> None:
        self.refused(send, "max_allowed_packet", character * PACKET)

    @pytest.mark.database("mariadb", "mysql")
    @pytest.mark.parametrize("character", ["x", '"', "\\", "'", "\n", "✈", "\x1a"])
    def test_what_is_not_refused_is_taken(self, character: str) -> None:
        """Up to the last byte: an error of the database would come through here."""
        least, most = 1, PACKET
        while most - least > 1:
            middle = (least + most) // 2
            try:
                publish("t", character * middle, key="'" * 255, id=f"{middle:0>255}")
                publish("t", character * middle, key="'" * 255, delay=100)
                least = middle
            except InvalidMessage:
                most = middle
        assert least > PACKET / 8

    def refused(self, send, said: str, payload: object, **more: object) -> None:
        with transaction.atomic():
            publish("t", "before")
            with pytest.raises(InvalidMessage, match=said):
                send("t", payload, **more)
            Effect.objects.create(name="goes on", value="")
        assert (Effect.objects.count(), log("t"), ScheduledMessage.objects.count()) == (1, ["before"], 0)

    def test_one_that_plain_sql_inserted_is_refused_with_the_reason(self, settings) -> None:
        settings.SQLQUEUE = {"MAX_PAYLOAD_BYTES": 70_000}
        insert("t", '"before"')
        insert("t", f'"{"x" * 70_000}"')
        insert("t", f'"{"x" * 200_000}"')
        insert("t", f'"{"x" * 69_000}"')
        move_all()
        assert log("t") == ["before", "x" * 69_000]
        refused = ScheduledMessage.objects.filter(refused=True)
        assert refused.count() == ScheduledMessage.objects.count() == 2
        assert all("70000 is the most" in row.refusal for row in refused)

    @pytest.mark.database("mariadb", "mysql")
    def test_the_servers_limit_is_that_of_the_present_connection(self, database_server: PrivateServer) -> None:
        assert packet(Log.of(options.DATABASE)) == PACKET
        with taking(2 * PACKET):
            assert packet(Log.of(options.DATABASE)) == 2 * PACKET
            publish("t", "x" * PACKET)
        with pytest.raises(InvalidMessage):
            publish("t", "x" * PACKET)
