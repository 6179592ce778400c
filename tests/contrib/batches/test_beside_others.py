"""What holds up no other batch, and what a batch around others waits for."""

from typing import Any

import pytest
from django.db import DataError

from sqlqueue import Batch, ConfigurationError, Delivery, Reject, publish
from sqlqueue.contrib.batches import collect, ends
from sqlqueue.contrib.batches.models import Batch as BatchRow
from sqlqueue.log.groups import register as register_group
from sqlqueue.log.groups import remove
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations.move import move
from tests.consuming import Consuming
from tests.contrib.batches.following import CALLED, figures, register, standing
from tests.logs import LOG


def test_a_callback_that_the_database_refuses_holds_up_no_other(
    consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_message = ends.publish_message

    def refuse(topic: str, message: Any, **options: Any) -> Any:
        if message.payload == "refused":
            raise DataError("too long")
        return publish_message(topic, message, **options)

    monkeypatch.setattr(ends, "publish_message", refuse)
    batches = []
    for payload in ("refused", "well") * 3:
        with Batch(on_finish=(CALLED, payload)) as batch:
            pass
        batches.append(batch)
    ends.check(LOG, [batch.id for batch in batches])
    assert [standing(batch.id).finished_at is not None for batch in batches] == [False, True] * 3


def test_a_batch_inside_another_is_kept_as_long_as_that(consuming: Consuming, called: list[Any], settings: Any) -> None:
    def handle(delivery: Delivery) -> None:
        raise Reject("no")

    register(consuming, "sync", handle)
    with Batch(on_success=(CALLED, "success")) as outer, Batch(parent=outer) as inner:
        inner.publish("t", 1)
    consuming.drain()
    assert standing(outer.id).state == "finished"
    BatchRow.objects.filter(id=inner.id).update(ended_at="2020-01-01T00:00Z")
    assert collect.collect(LOG) == 0
    ends.sweep(LOG)
    assert standing(outer.id).state == "finished"
    settings.SQLQUEUE_BATCHES = {"RETENTION": 0}
    assert collect.collect(LOG) == 2


class TestGroupsThatAreRemoved:
    def test_members_for_one_alone_are_no_members_any_more(self, consuming: Consuming, called: list[Any]) -> None:
        consuming.consumer("t", lambda delivery: None, group="away")
        consuming.drain()
        with Batch(on_finish=(CALLED, "finish")) as batch:
            batch.publish("t", 1, group="away")
        remove(LOG, "away", "t")
        ends.sweep(LOG)
        assert standing(batch.id).state == "succeeded"

    def test_one_that_is_registered_again_is_another(self, consuming: Consuming, called: list[Any]) -> None:
        for group in ("away", "default"):
            consuming.consumer("t", lambda delivery: None, group=group)
        consuming.drain()
        with Batch(on_finish=(CALLED, "finish")) as batch:
            batch.publish("t", 1)
        ends.sweep(LOG)
        remove(LOG, "away", "t")
        register_group(LOG, "away", "t", "latest")
        consuming.drain("default")
        ends.sweep(LOG)
        assert standing(batch.id).state == "succeeded"


def test_what_is_read_again_after_the_end_is_no_more_than_all(consuming: Consuming) -> None:
    register(consuming, "sync", lambda delivery: None)
    with Batch() as batch:
        batch.publish_many("t", [1, 2, 3])
    consuming.drain()
    move(LOG, "default", "t", 0)
    consuming.drain()
    assert figures(batch.id) == (3, 3, 0)


def test_a_parent_is_a_batch() -> None:
    with pytest.raises(ConfigurationError, match=r"parent must be a Batch, such as Batch.of\(delivery\), not 'id'"):
        Batch(parent="id")  # type: ignore[arg-type]


def test_a_scheduled_member_whose_id_came_to_be_taken_is_settled(consuming: Consuming, called: list[Any]) -> None:
    """As by a transaction that was open while it was scheduled, and published the same id."""
    register(consuming, "sync", lambda delivery: None)
    with Batch(on_finish=(CALLED, "finish")) as batch:
        batch.publish("t", 1, key="k", id="later", delay=3600)
        batch.publish("t", 2, key="k")
    offset = publish("t", 3, key="k", id="now").offset
    Message.objects.filter(offset=offset).update(message_id="later")
    ScheduledMessage.objects.update(due_at="2020-01-01T00:00Z")
    assert move_due(LOG) == 1
    consuming.drain()
    assert figures(batch.id) == (2, 2, 0)
    ends.sweep(LOG)
    assert standing(batch.id).state == "succeeded"
