"""What holds up no other batch, and what a batch around others waits for."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DataError

from sqlqueue import Batch, ConfigurationError, Delivery, Reject, publish
from sqlqueue.consumers.background import batches as background
from sqlqueue.consumers.background.batches import BatchTask
from sqlqueue.log import batch_collect, batch_ends
from sqlqueue.log.groups import register as register_group
from sqlqueue.log.groups import remove
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Batch as BatchRow
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations.move import move
from tests.batches.following import CALLED, figures, register, standing
from tests.consuming import QUICK, Consuming
from tests.logs import LOG


def test_what_is_asked_for_all_the_time_does_not_keep_the_sweep_away(consuming: Consuming, called: list[Any]) -> None:
    with Batch(deadline=3600, on_failure=(CALLED, "late")) as late:
        late.publish("without-a-group", 1)
    BatchRow.objects.update(deadline_at="2020-01-01T00:00Z")
    task = BatchTask(LOG)
    for _ in range(2):
        task.look_at(["another"])
        task.run_once()
    assert standing(late.id).failed_at is not None


def test_a_sweep_that_lasts_rests(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps: list[str] = []
    now = [1000.0]

    def sweep(alias: str, beyond: str) -> str:
        sweeps.append(beyond)
        now[0] += 3.0
        return "" if beyond else "1"

    monkeypatch.setattr(background, "sweep", sweep)
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: now[0]))
    task = BatchTask(LOG)
    assert [task.run_once(), task.run_once(), task.run_once()] == [True, False, False]
    now[0] += 59.0
    assert not task.run_once()
    assert sweeps == ["", "1"]
    now[0] += 1.0
    task.run_once()
    assert sweeps == ["", "1", ""]


def test_a_callback_that_the_database_refuses_holds_up_no_other(
    consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_message = batch_ends.publish_message

    def refuse(topic: str, message: Any, **options: Any) -> Any:
        if message.payload == "refused":
            raise DataError("too long")
        return publish_message(topic, message, **options)

    monkeypatch.setattr(batch_ends, "publish_message", refuse)
    batches = []
    for payload in ("refused", "well") * 3:
        with Batch(on_finish=(CALLED, payload)) as batch:
            pass
        batches.append(batch)
    batch_ends.check(LOG, [batch.id for batch in batches])
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
    assert batch_collect.collect(LOG) == 0
    batch_ends.sweep(LOG)
    assert standing(outer.id).state == "finished"
    settings.SQLQUEUE = {**QUICK, "BATCH_RETENTION": 0}
    assert batch_collect.collect(LOG) == 2


class TestGroupsThatAreRemoved:
    def test_members_for_one_alone_are_no_members_any_more(self, consuming: Consuming, called: list[Any]) -> None:
        consuming.consumer("t", lambda delivery: None, group="away")
        consuming.drain()
        with Batch(on_finish=(CALLED, "finish")) as batch:
            batch.publish("t", 1, group="away")
        remove(LOG, "away", "t")
        batch_ends.sweep(LOG)
        assert standing(batch.id).state == "succeeded"

    def test_one_that_is_registered_again_is_another(self, consuming: Consuming, called: list[Any]) -> None:
        for group in ("away", "default"):
            consuming.consumer("t", lambda delivery: None, group=group)
        consuming.drain()
        with Batch(on_finish=(CALLED, "finish")) as batch:
            batch.publish("t", 1)
        batch_ends.sweep(LOG)
        remove(LOG, "away", "t")
        register_group(LOG, "away", "t", "latest")
        consuming.drain("default")
        batch_ends.sweep(LOG)
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
    with pytest.raises(ConfigurationError, match=r"parent must be a Batch, such as delivery.batch, not 'id'"):
        Batch(parent="id")  # type: ignore[arg-type]


def test_a_scheduled_member_whose_id_came_to_be_taken_is_none(consuming: Consuming, called: list[Any]) -> None:
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
    assert figures(batch.id) == (1, 1, 0)
    batch_ends.sweep(LOG)
    assert standing(batch.id).state == "succeeded"
