"""The relay: what a transaction publishes for another database gets there once, whatever dies on the way."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue import ConfigurationError, NewMessage, cancel, get_status, publish, publish_many
from sqlqueue.consumers.declare import relays
from sqlqueue.core.keys import database_of
from sqlqueue.core.relay import relay_topic
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.database.log import Log
from sqlqueue.log import relay
from sqlqueue.log.groups import register
from sqlqueue.log.topics import topic_info
from sqlqueue.models import ConsumerGroup, Message, RelayPosition, ScheduledMessage
from sqlqueue.operations import repartition
from sqlqueue.operations.replay import replay
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import AWAY, DEAD_LETTERS
from sqlqueue.stats.survey import survey
from sqlqueue.testing import drain
from tests.database.plans import an_index_if_there_is_one, full_scans
from tests.databases.aliases import BOTH, A, B, b_is_down

pytestmark = pytest.mark.usefixtures("databases")

KEYS = [key for key in (f"key-{number}" for number in range(400)) if database_of(key, BOTH) == B]
TOPIC = relay_topic(B)


class Killed(BaseException):
    """The process ends here."""


def relayed(*names: str, **options: Any) -> None:
    """Publish messages for the other database in a transaction on DATABASE."""
    with transaction.atomic(using=A):
        for name in names:
            publish("t", name, key=KEYS[0], id=name, relay=True, **options)


def arrived() -> list[Any]:
    """Return what is in the log of the other database."""
    return list(Message.objects.using(B).filter(topic="t").order_by("offset").values_list("payload", flat=True))


def on_their_way() -> list[FetchedMessage]:
    """Return what waits, as the consumer reads it."""
    return [on_its_way(one) for one in Message.objects.using(A).filter(topic=TOPIC).order_by("offset")]


def on_its_way(row: Message) -> FetchedMessage:
    """Return a message as the consumer reads it."""
    payload = json.dumps(row.payload)
    return FetchedMessage(row.offset, row.partition_key, row.message_id, payload, row.headers, row.created_at, "")


def bring() -> None:
    relay.arrive(Log.of(A), Log.of(B), on_their_way())


def test_messages_arrive_in_their_order_as_they_were_published() -> None:
    with transaction.atomic(using=A):
        for number in range(300):
            publish("t", {"n": number}, key=KEYS[number % 2], headers={"h": "ü"}, priority=0, group="g", relay=True)
        publish("t", b"\x00bytes", key=KEYS[0], content_type="image/png", relay=True)
        publish("t", "later", key=KEYS[0], delay=60, relay=True)
    drain()
    assert arrived() == [{"n": number} for number in range(300)] + [None]
    first, *_, last = Message.objects.using(B).filter(topic="t").order_by("offset")
    assert (first.headers, first.target_group, first.partition_key) == ({"h": "ü"}, "g", KEYS[0])
    assert bytes(last.body or b"") == b"\x00bytes"
    scheduled = ScheduledMessage.objects.using(B).get()
    assert 50 < (scheduled.due_at - scheduled.created_at).total_seconds() < 70
    drain()
    assert len(arrived()) == 301


def test_one_that_comes_again_is_published_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was killed after the commit on the target, and before its ack."""
    relayed("one", "two")
    with monkeypatch.context() as patch:
        patch.setattr(relay, "notify_after_commit", _die)
        with pytest.raises(Killed):
            bring()
    assert arrived() == [], "killed before the commit it has brought none"
    for _ in range(2):
        bring()
        assert arrived() == ["one", "two"]
    Message.objects.using(B).filter(topic="t").delete()  # collected there, so that their ids are free again
    relayed("three")
    bring()
    assert arrived() == ["three"]


def test_one_that_was_frozen_brings_nothing_that_another_has_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    relayed("one", "two")
    frozen = on_their_way()
    bring()
    Message.objects.using(A).filter(topic=TOPIC).delete()  # acked, and collected
    Message.objects.using(B).filter(topic="t").delete()
    relay.arrive(Log.of(A), Log.of(B), frozen)
    assert arrived() == []

    relayed("three")
    offers = relay._rows

    def overtaken(*values: Any) -> Any:
        monkeypatch.setattr(relay, "_rows", offers)
        found = offers(*values)
        bring()
        assert arrived() == ["three"]
        Message.objects.using(B).filter(topic="t").delete()  # collected
        return found

    monkeypatch.setattr(relay, "_rows", overtaken)
    bring()
    assert arrived() == []


def test_two_processes_at_once_bring_each_once() -> None:
    relayed(*(f"m{number}" for number in range(60)))
    start = threading.Barrier(4)

    def some() -> None:
        try:
            start.wait(30)
            messages = on_their_way()
            for first in range(0, len(messages), 7):
                relay.arrive(Log.of(A), Log.of(B), messages[first : first + 7])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(some) for _ in range(4)]:
            done.result(60)
    assert arrived() == [f"m{number}" for number in range(60)]


def test_what_was_published_since_a_failover_that_lost_the_last_ones_arrives() -> None:
    """The new primary gives the offsets of the lost messages again."""
    relayed("one", "two")
    bring()
    lost = Message.objects.using(A).filter(topic=TOPIC).order_by("offset").last()
    assert lost is not None
    offset = lost.offset
    lost.delete()
    relayed("new")
    rows = Message.objects.using(A).filter(topic=TOPIC)
    new = rows.order_by("offset").last()
    assert new is not None
    rows.filter(pk=new.pk).update(offset=offset)
    for _ in range(2):
        bring()
        assert arrived() == ["one", "two", "new"]


def test_an_id_that_its_database_has_already_is_ignored_there() -> None:
    publish("t", "first", key=KEYS[0], id="one")
    relayed("one", "two")
    bring()
    assert arrived() == ["first", "two"]


def test_what_its_database_refuses_is_a_dead_letter_and_a_finding_and_holds_nothing_up() -> None:
    topic_info(Log.of(B), "t")
    relayed("one", "refused", "two")
    row = next(one for one in Message.objects.using(A).filter(topic=TOPIC) if one.payload == "refused")
    row.headers["sqlqueue-relay"]["priority"] = 7
    row.save(using=A, update_fields=["headers"])
    drain()
    assert arrived() == ["one", "two"]
    (dead,) = Message.objects.using(A).dead_letters()
    assert (dead.original_topic, dead.payload) == (TOPIC, "refused")
    assert "priority 7 is not one of topic 't'" in (dead.last_error or "")
    assert DEAD_LETTERS in {one.kind for one in findings(survey(Log.of(A))) if one.topic == TOPIC}
    copy = dead.headers | {"sqlqueue-relay": dead.headers["sqlqueue-relay"] | {"priority": 0}}
    Message.objects.using(A).filter(pk=dead.pk).update(headers=copy)
    replay(TOPIC, database=A)
    drain()
    assert arrived() == ["one", "two", "refused"]


def test_one_that_does_not_answer_is_waited_for_without_attempts() -> None:
    relayed("one")
    with b_is_down():
        for _ in range(3):
            with pytest.raises(relays.Postpone):
                relays.bring([_Given(one) for one in on_their_way()])
    bring()
    assert arrived() == ["one"]


def test_its_status_is_relayed_until_it_has_arrived() -> None:
    publish("t", "other", key=KEYS[0])
    ConsumerGroup.objects.using(B).create(topic="t", consumer_group="g", start=0)
    relayed("one")
    status = get_status("t", id="one", key=KEYS[0])
    assert status is not None
    assert (status.database, {name: one.state for name, one in status.groups.items()}) == (B, {"g": "relayed"})
    assert not cancel("t", id="one", key=KEYS[0])
    bring()
    status = get_status("t", id="one", key=KEYS[0])
    assert status is not None
    assert (status.database, status.groups["g"].state) == (B, "waiting")
    Message.objects.using(B).filter(topic="t").delete()
    assert get_status("t", id="one", key=KEYS[0]) is None


def test_expiry_counts_from_the_publish() -> None:
    relayed("one", expires=3600)
    Message.objects.using(A).filter(topic=TOPIC).update(created_at=_earlier(1800))
    bring()
    row = Message.objects.using(B).get(topic="t")
    assert row.expires_at is not None
    assert 1700 < (row.expires_at - row.created_at).total_seconds() < 1900


def test_a_relay_that_no_process_serves_is_a_finding() -> None:
    relayed("one")
    register(Log.of(A), relays.GROUP, TOPIC)
    assert AWAY in {one.kind for one in findings(survey(Log.of(A))) if one.topic == TOPIC}


def test_only_the_queue_publishes_to_it_and_its_partition_stays() -> None:
    relayed("one")
    with pytest.raises(ConfigurationError, match="publish with relay=True"):
        publish(TOPIC, 1)
    with pytest.raises(ConfigurationError, match="its partition stays"):
        repartition.begin(Log.of(A), TOPIC, 4)


def test_without_a_transaction_nothing_is_relayed() -> None:
    publish_many("t", [NewMessage(1, key=KEYS[0])], relay=True)
    assert arrived() == [1]
    assert not on_their_way()


def test_what_waits_is_found_by_an_index() -> None:
    relayed(*(f"m{number}" for number in range(300)))
    bring()
    with an_index_if_there_is_one():
        assert not full_scans(Log.of(B).dialect.sql(relay.POSITION), (A, 0))
    assert RelayPosition.objects.using(B).get().offset == on_their_way()[-1].offset


class _Given:
    def __init__(self, message: FetchedMessage) -> None:
        self.topic, self._log, self._message = TOPIC, Log.of(A), message


def _die(*values: Any) -> None:
    raise Killed


def _earlier(seconds: float) -> Any:
    from datetime import timedelta

    from django.utils import timezone

    return timezone.now() - timedelta(seconds=seconds)
