"""The relay: what a transaction publishes for another shard gets there once, whatever dies on the way."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.db.models import JSONField, Value

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.core.shards import shard_of
from sqlqueue.database.statements import dialect
from sqlqueue.log import relay_moves
from sqlqueue.log.relayed_rows import Relayed
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, RelayArrival, RelayedMessage, ScheduledMessage, Topic
from tests.database.plans import an_index_if_there_is_one, full_scans
from tests.shards.aliases import A, B

pytestmark = pytest.mark.usefixtures("shards")

KEYS = [key for key in (f"key-{number}" for number in range(400)) if shard_of(key, ["a", "b"]) == "b"]


class Killed(BaseException):
    """The process ends here."""


def relayed(*names: str, **options: Any) -> None:
    """Publish messages for shard b in a transaction on shard a."""
    with transaction.atomic(using=A):
        for name in names:
            publish("t", name, key=KEYS[0], id=name, relay=True, **options)


def arrived() -> list[Any]:
    """Return what is in the log of b."""
    return list(Message.objects.using(B).order_by("offset").values_list("payload", flat=True))


def move_all() -> None:
    while relay_moves.move(A, "b").more:
        pass


def test_messages_arrive_in_their_order_as_they_were_published() -> None:
    with transaction.atomic(using=A):
        for number in range(3 * relay_moves.MOVED_AT_ONCE):
            publish("t", {"n": number}, key=KEYS[number % 2], headers={"h": "ü"}, priority=0, group="g", relay=True)
        publish("t", b"\x00bytes", key=KEYS[0], content_type="image/png", relay=True)
        publish("t", "later", key=KEYS[0], delay=60, relay=True)
    move_all()
    assert arrived() == [{"n": number} for number in range(3 * relay_moves.MOVED_AT_ONCE)] + [None]
    first, *_, last = Message.objects.using(B).order_by("offset")
    assert (first.headers, first.target_group, first.partition_key) == ({"h": "ü"}, "g", KEYS[0])
    assert bytes(last.body or b"") == b"\x00bytes"
    scheduled = ScheduledMessage.objects.using(B).get()
    assert 50 < (scheduled.due_at - scheduled.created_at).total_seconds() < 70
    assert not RelayedMessage.objects.using(A).exists()


@pytest.mark.parametrize("collected", [False, True])
def test_a_process_that_is_killed_before_it_deletes_has_moved_them_once(
    monkeypatch: pytest.MonkeyPatch, collected: bool
) -> None:
    first, second = "one", "two\nlines\u2028 and a space"
    relayed(first, second)
    with monkeypatch.context() as patch:
        patch.setattr(relay_moves, "delete", _die)
        with pytest.raises(Killed):
            relay_moves.move(A, "b")
    assert arrived() == [first, second]
    if collected:  # so that their ids are free again
        Message.objects.using(B).all().delete()
    relayed("three")
    move_all()
    assert arrived() == ([] if collected else [first, second]) + ["three"]
    assert not RelayedMessage.objects.using(A).exists()


def test_a_process_that_is_killed_before_the_commit_has_moved_none(monkeypatch: pytest.MonkeyPatch) -> None:
    relayed("one")
    with monkeypatch.context() as patch:
        patch.setattr(relay_moves, "notify_after_commit", _die)
        with pytest.raises(Killed):
            relay_moves.move(A, "b")
    assert arrived() == []
    move_all()
    assert arrived() == ["one"]


def test_one_that_was_frozen_since_it_read_adds_nothing_that_another_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    relayed("one", "two")
    bring = relay_moves._bring

    def overtaken(*values: Any) -> Any:
        monkeypatch.setattr(relay_moves, "_bring", bring)
        move_all()  # another process, meanwhile
        Message.objects.using(B).all().delete()  # consumed, and collected
        return bring(*values)

    monkeypatch.setattr(relay_moves, "_bring", overtaken)
    assert relay_moves.move(A, "b") == (0, True)
    assert arrived() == []


def test_one_that_another_deletes_since_it_was_read_is_not_moved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    relayed("one")
    with monkeypatch.context() as patch:
        patch.setattr(relay_moves, "delete", _die)
        with pytest.raises(Killed):
            relay_moves.move(A, "b")
    Message.objects.using(B).all().delete()  # collected, so that its id is free again

    def other_process(source: str, arrived: set[str]) -> set[str]:
        RelayedMessage.objects.using(A).filter(message_id="one").delete()
        return still_there(source, arrived)

    still_there = relay_moves._still_there
    monkeypatch.setattr(relay_moves, "_still_there", other_process)
    relayed("two")
    move_all()
    assert arrived() == ["two"]


def test_one_that_was_frozen_before_it_deletes_deletes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    relayed("one")
    delete = relay_moves.delete

    def overtaken(*values: Any) -> None:
        monkeypatch.setattr(relay_moves, "delete", delete)
        relayed("two")
        move_all()
        relayed("three")
        delete(*values)

    monkeypatch.setattr(relay_moves, "delete", overtaken)
    relay_moves.move(A, "b")
    move_all()
    assert arrived() == ["one", "two", "three"]


def test_a_number_that_is_given_again_after_a_restore_is_another_message() -> None:
    relayed("one")
    number = RelayedMessage.objects.using(A).get().pk
    move_all()
    with transaction.atomic(using=A):
        publish("t", "two", key=KEYS[0], relay=True)
    RelayedMessage.objects.using(A).update(id=number)
    move_all()
    assert arrived() == ["one", "two"]


def test_what_has_arrived_is_remembered_only_as_long_as_it_may_be_there() -> None:
    for name in ("one", "two", "three"):
        relayed(name)
        move_all()
    (mark,) = json.loads(str(RelayArrival.objects.using(B).get().arrived))
    assert mark.endswith(" three")


def test_an_id_that_its_shard_has_already_is_ignored_there() -> None:
    publish("t", "first", key=KEYS[0], id="one")
    relayed("one", "two")
    move_all()
    assert arrived() == ["first", "two"]


def test_one_that_its_shard_refuses_stays_with_the_reason_and_holds_nothing_up() -> None:
    relayed("one", "two", "three")
    RelayedMessage.objects.using(A).filter(message_id="two").update(priority=7)
    move_all()
    assert arrived() == ["one", "three"]
    refused = RelayedMessage.objects.using(A).filter(refused=True)
    assert "priority 7 is not one of topic" in str(refused.get().refusal)
    refused.update(priority=0, refused=False, refusal=None)  # an operator corrects it
    move_all()
    assert arrived() == ["one", "three", "two"]


def test_one_that_the_database_refuses_stays_with_the_reason_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django.db import DataError

    add = relay_moves.add_many

    def refusing(alias: str, offers: Any) -> Any:
        if any(offer.message.row.id == "two" for offer in offers):
            raise DataError("too odd")
        return add(alias, offers)

    monkeypatch.setattr(relay_moves, "add_many", refusing)
    relayed("one", "two", "three")
    move_all()
    assert arrived() == ["one", "three"]
    assert "too odd" in str(RelayedMessage.objects.using(A).get().refusal)


def test_expiry_counts_from_the_publish() -> None:
    relayed("one", expires=3600)
    RelayedMessage.objects.using(A).update(expires_after=0.001)
    move_all()
    message = Message.objects.using(B).get()
    assert message.expires_at is not None
    assert message.expires_at <= message.created_at


@pytest.mark.parametrize("ids", [("one",), ("one", "two")])
def test_one_that_expires_as_it_arrives_does_not_live_for_ever(
    monkeypatch: pytest.MonkeyPatch, ids: tuple[str, ...]
) -> None:
    read = relay_moves._read

    def at_the_last_moment(*given: Any) -> list[Relayed]:
        return [row._replace(left=-3_600) for row in read(*given)]

    monkeypatch.setattr(relay_moves, "_read", at_the_last_moment)
    relayed(*ids, expires=3600)
    move_all()
    assert arrived() == list(ids)
    assert not Message.objects.using(B).filter(expires_at=None).exists()


def test_plain_sql_may_schedule_a_message_on_any_shard() -> None:
    publish_many("t", [NewMessage(0, key=KEYS[0])])
    rows = [
        ScheduledMessage(topic="t", partition_key=KEYS[0], message_id="one", payload={"a": [1, "ü"]}, headers={"h": 1}),
        ScheduledMessage(topic="t", partition_key=KEYS[0], payload=Value(None, JSONField()), body=b"\x00\xff"),
        ScheduledMessage(topic="t", payload="keyless"),
    ]
    for row in rows:
        row.save(using=A)
    move_due(A)
    move_all()
    assert arrived() == [0, {"a": [1, "ü"]}, None]
    assert Message.objects.using(B).get(message_id="one").headers == {"h": 1}
    assert [one.payload for one in Message.objects.using(A).all()] == ["keyless"]
    assert not ScheduledMessage.objects.using(A).exists()


def test_the_topic_is_made_on_its_shard_as_it_was_fixed(shards: dict[str, Any], settings: Any) -> None:
    settings.SQLQUEUE = shards | {"PARTITIONS": 8}
    relayed("one")
    settings.SQLQUEUE = shards
    move_all()
    assert Topic.objects.using(B).get(name="t").partitions == 8


def test_two_processes_at_once_move_each_message_once() -> None:
    names = [f"m{number}" for number in range(300)]
    relayed(*names)

    def move_and_close() -> None:
        try:
            move_all()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as threads:
        for moving in [threads.submit(move_and_close) for _ in range(3)]:
            moving.result(60)
    assert Counter(arrived()) == dict.fromkeys(names, 1)


def test_what_waits_is_found_by_an_index() -> None:
    relayed(*(f"m{number}" for number in range(300)))
    syntax = dialect(A)
    read = relay_moves.READ.replace("{due}", syntax.epoch("due_at")).replace("{left}", syntax.remaining("created_at"))
    with an_index_if_there_is_one():
        assert not full_scans(syntax.sql(relay_moves.NEXT), ("b",))
        assert not full_scans(syntax.sql(read), ("b", 1, 10))
        assert not full_scans(syntax.sql(relay_moves.STILL_THERE.replace("{marks}", "%s")), (1,))


def test_the_migration_is_not_taken_back_while_shards_are_in_use() -> None:
    relayed("one")
    try:
        with pytest.raises(CommandError, match=r"1 messages wait for their way.*Nothing was changed"):
            call_command("migrate", "sqlqueue", "0028", database=A, verbosity=0)
        move_all()
        with pytest.raises(CommandError, match=r"spread over several shards: t\. Nothing was changed"):
            call_command("migrate", "sqlqueue", "0028", database=A, verbosity=0)
    finally:
        call_command("migrate", "sqlqueue", database=A, verbosity=0)  # the later ones were taken back
    relayed("two")
    move_all()
    assert arrived() == ["one", "two"]


def _die(*values: Any) -> None:
    raise Killed
