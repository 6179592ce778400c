"""What waits for its way to another shard, looked at, cancelled, corrected and discarded: it arrives once, or never."""

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from django.db import DataError, OperationalError, transaction

from sqlqueue import InvalidMessage, cancel, cancel_all, get_status, publish
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.shards import shard_of
from sqlqueue.exceptions import SqlqueueError, Unreachable
from sqlqueue.log import relay_hold, relay_moves
from sqlqueue.log.groups import register
from sqlqueue.models import Message, RelayedMessage, Topic
from sqlqueue.operations import relayed
from sqlqueue.operations.reschedule import Changed
from tests.database.plans import an_index_if_there_is_one, full_scans
from tests.shards.aliases import A, B

pytestmark = pytest.mark.usefixtures("shards")

NAMES = [f"key-{number}" for number in range(60)]
KEY, OTHER = [name for name in NAMES if shard_of(name, "ab") == "b"][:2]
OWN = next(name for name in NAMES if shard_of(name, "ab") == "a")
MOVING: dict[str, Callable[[], Any]] = {
    "cancelled": lambda: cancel("t", id="one", key=KEY),
    "all cancelled": lambda: cancel_all("t", key=KEY) == 1,
    "discarded": lambda: relayed.discard(A, [number()]) == Changed(1, 0),
}


def relay(*ids: str, key: str = KEY, **options: Any) -> None:
    with transaction.atomic(using=A):
        for id in ids:
            publish("t", id, key=key, id=id, relay=True, **options)


def number(id: str = "one") -> int:
    return int(RelayedMessage.objects.using(A).values_list("pk", flat=True).get(message_id=id))


def arrived() -> list[Any]:
    return list(Message.objects.using(B).order_by("offset").values_list("payload", flat=True))


def move_all() -> None:
    while relay_moves.move(A, "b").more:
        pass


def refuse(id: str = "one") -> None:
    RelayedMessage.objects.using(A).filter(message_id=id).update(priority=7)
    move_all()
    assert RelayedMessage.objects.using(A).get(message_id=id).refused


def test_its_status_is_scheduled_on_its_shard_and_says_the_refusal() -> None:
    relay("one", group="g")
    found = get_status("t", id="one", key=KEY)
    assert found is not None
    assert (found.shard, found.offset, found.groups["g"].state) == ("b", None, "scheduled")
    refuse()
    found = get_status("t", id="one", key=KEY)
    assert found is not None
    assert "priority 7 is not one of topic 't'" in found.groups["g"].error
    assert get_status("t", id="two", key=KEY) is None


def test_its_groups_are_those_of_its_shard() -> None:
    register(B, "g", "t")
    at = datetime(2030, 1, 1, tzinfo=timezone.utc)
    relay("one", at=at)
    found = get_status("t", id="one", key=KEY)
    assert found is not None
    assert (list(found.groups), found.due_at) == (["g"], at)


def test_one_that_arrives_while_its_status_is_read_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    relay("one")
    waiting = relay_hold.waiting

    def too_late(*values: Any) -> Any:
        move_all()
        return waiting(*values)

    monkeypatch.setattr(relay_hold, "waiting", too_late)
    found = get_status("t", id="one", key=KEY)
    assert found is not None
    assert found.offset is not None


@pytest.mark.parametrize("how", MOVING)
def test_it_does_not_arrive(how: str) -> None:
    relay("one")
    relay("two", key=OTHER)
    assert MOVING[how]()
    move_all()
    assert arrived() == ["two"]
    assert not RelayedMessage.objects.using(A).exists()
    relay("one")
    move_all()
    assert arrived() == ["two", "one"]


@pytest.mark.parametrize("how", MOVING)
def test_what_was_read_before_does_not_arrive_either(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    relay("one")
    bring = relay_moves._bring

    def overtaken(*values: Any) -> Any:
        monkeypatch.setattr(relay_moves, "_bring", bring)
        assert MOVING[how]()
        return bring(*values)

    monkeypatch.setattr(relay_moves, "_bring", overtaken)
    assert relay_moves.move(A, "b") == (0, True)
    assert arrived() == []


@pytest.mark.parametrize("how", MOVING)
def test_what_has_arrived_and_was_not_deleted_stays_in_the_log(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    relay("one")
    with monkeypatch.context() as patch:
        patch.setattr(relay_moves, "delete", die)
        with pytest.raises(Killed):
            relay_moves.move(A, "b")
    assert not MOVING[how]()
    assert not RelayedMessage.objects.using(A).exists()
    move_all()
    assert arrived() == ["one"]


def test_cancelled_although_it_is_in_the_log_as_well_it_is_delivered_and_says_so() -> None:
    publish("t", "first", key=KEY, id="one")
    relay("one")
    assert not cancel("t", id="one", key=KEY)
    assert not RelayedMessage.objects.using(A).exists()


def test_in_a_transaction_it_is_not_cancelled_and_what_does_not_wait_may_be() -> None:
    relay("one")
    with transaction.atomic(using=A):
        with pytest.raises(InvalidMessage, match="change or cancel it after the commit"):
            cancel("t", id="one", key=KEY)
        assert not cancel("t", id="unknown", key=KEY)
    assert RelayedMessage.objects.using(A).filter(refused=False).count() == 1


@pytest.mark.parametrize("fails_at", [1, 2])
def test_if_its_shard_does_not_answer_it_goes_on_as_before(fails_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    relay("one")
    before = RelayedMessage.objects.using(A).values().get()
    arrivals, looks = relay_moves.arrivals, 0

    def down(*values: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == fails_at:
            raise OperationalError(2013, "Lost connection")
        return arrivals(*values)

    with monkeypatch.context() as patch:
        patch.setattr(relay_hold, "arrivals", down)
        with pytest.raises((OperationalError, Unreachable)):
            relayed.discard(A, [number()])
    assert RelayedMessage.objects.using(A).values().get() == before
    move_all()
    assert arrived() == ["one"]


def test_killed_while_it_is_cancelled_it_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    relay("one")
    with monkeypatch.context() as patch:
        patch.setattr(relay_hold.retries, "run_statement", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cancel("t", id="one", key=KEY)
    move_all()
    row = RelayedMessage.objects.using(A).get()
    assert (row.refused, row.refusal) == (True, relay_hold.BEING_CANCELLED)
    assert relayed.retry(A, [row.pk]) == Changed(1, 0)
    move_all()
    assert arrived() == ["one"]


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_corrected_it_is_moved_with_what_it_is_now() -> None:
    relay("one", "two", headers={"h": 1})
    refuse()
    relayed.edit(A, number(), priority=0, payload_json='{"n": "ü"}', id="new", headers={"k": "ü"})
    move_all()
    assert arrived()[0] == "two"
    new = Message.objects.using(B).get(message_id="new")
    assert (new.payload, new.headers, new.priority, new.partition_key) == ({"n": "ü"}, {"k": "ü"}, 0, KEY)


def test_corrected_while_one_is_frozen_that_has_read_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    relay("one")
    bring = relay_moves._bring

    def overtaken(*values: Any) -> Any:
        monkeypatch.setattr(relay_moves, "_bring", bring)
        relayed.edit(A, number(), id="new", payload_json='"corrected"')
        return bring(*values)

    monkeypatch.setattr(relay_moves, "_bring", overtaken)
    move_all()
    assert arrived() == ["corrected"]
    assert list(Message.objects.using(B).values_list("message_id", flat=True)) == ["new"]


def test_one_that_is_moved_alone_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    relay("one", "two")
    bring = relay_moves._bring
    calls: list[int] = []

    def fails_together(*values: Any) -> Any:
        calls.append(len(values[-1]))
        if len(calls) == 1:
            relayed.edit(A, number(), payload_json='"corrected"')
            raise DataError("they are refused together")
        return bring(*values)

    monkeypatch.setattr(relay_moves, "_bring", fails_together)
    move_all()
    assert arrived() == ["corrected", "two"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"priority": 7}, "priority 7 is not one of topic 't'"),
        ({"key": OWN}, "belongs to this shard, 'a': publish it here, and discard"),
        ({"topic": f"t{DEAD_LETTER_SUFFIX}"}, "only the queue itself writes them"),
        ({"payload_json": "{"}, "JSON"),
        ({"id": "x" * 300}, "300"),
    ],
)
def test_what_publish_refuses_is_not_stored(changes: dict[str, Any], message: str) -> None:
    relay("one")
    before = RelayedMessage.objects.using(A).values().get()
    with pytest.raises(SqlqueueError, match=message):
        relayed.edit(A, number(), **changes)
    assert RelayedMessage.objects.using(A).values().get() == before


def test_with_another_topic_it_goes_to_that_ones_shard(shards: dict[str, Any], settings: Any) -> None:
    settings.SQLQUEUE = shards | {"TOPICS": {"t": {}, "u": {"shards": ["b"]}}}
    relay("one")
    refuse()
    relayed.edit(A, number(), topic="u", priority=0)
    move_all()
    assert Message.objects.using(B).get().topic == "u"
    assert Topic.objects.using(B).filter(name="u").exists()


def test_more_than_one_statement_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (relay_hold, relayed):
        monkeypatch.setattr(module, "AT_ONCE", 2)
    relay(*(f"m{number}" for number in range(10)))
    numbers = list(RelayedMessage.objects.using(A).order_by("pk").values_list("pk", flat=True))
    assert relayed.discard(A, numbers[:5]) == Changed(5, 0)
    RelayedMessage.objects.using(A).update(refused=True)
    assert relayed.retry(A, numbers) == Changed(5, 5)
    assert cancel_all("t", key=KEY) == 5


def test_only_refused_ones_are_tried_again() -> None:
    relay("one", "two")
    refuse()
    assert relayed.retry(A, [number(), 10**9]) == Changed(1, 1)
    assert relayed.retry(A, [number()]) == Changed(0, 1)


def test_they_are_found_by_an_index() -> None:
    relay(*(f"m{number}" for number in range(300)))
    with an_index_if_there_is_one():
        assert not full_scans(relay_hold.OF_ID, ("t", KEY, "m7"))
        assert not full_scans(relay_hold.OF_KEY, ("t", OTHER))
