"""A batch's callbacks speak of all of it: the steps of its chain, and the batches inside it."""

from typing import Any

import pytest

from sqlqueue import Batch, Delivery, Reject, get_batch, publish, replay
from sqlqueue.contrib.batches import collect, ends
from sqlqueue.contrib.batches.ends import standings
from sqlqueue.contrib.batches.models import Batch as BatchRow
from sqlqueue.contrib.batches.models import BatchPart
from sqlqueue.contrib.batches.publishing import Block
from sqlqueue.contrib.batches.retry import retry_failed
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log.groups import register as register_group
from sqlqueue.models import Message
from tests.consuming import Consuming
from tests.contrib.batches.following import CALLED, figures, register, standing
from tests.logs import LOG

ENDS = ("finish", "success", "failure")


def calls(name: str = "") -> Any:
    return {f"on_{when}": (CALLED, f"{name}{when}") for when in ENDS}


def register_steps(consuming: Consuming, *bad: int) -> tuple[list[int], list[int]]:
    """Register a handler that rejects these payloads, as long as the second list that is returned has them; the first
    one is what it has seen."""
    seen: list[int] = []
    rejected = list(bad)

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload in rejected:
            raise Reject("no")

    register(consuming, "sync", handle)
    return seen, rejected


class TestAChain:
    def test_it_is_finished_after_its_last_step(self, consuming: Consuming, called: list[Any]) -> None:
        seen, _ = register_steps(consuming)
        with Batch(then=[[("t", 2), ("t", 2)], ("t", 3)], **calls()) as batch:
            batch.publish("t", 1)
        ends.sweep(LOG)
        assert (seen, called, standing(batch.id).state) == ([], [], "running")
        consuming.drain()
        assert seen == [1, 2, 2, 3]
        assert sorted(called) == ["finish", "success"]
        offsets = Message.objects.filter(topic__in=("t", CALLED)).order_by("offset").values_list("topic", flat=True)
        assert list(offsets) == ["t"] * 4 + [CALLED] * 2
        assert figures(batch.id) == (4, 4, 0)

    @pytest.mark.parametrize("bad", [1, 2, 3])
    def test_a_step_that_fails_fails_the_chain_which_goes_on_after_a_replay(
        self, bad: int, consuming: Consuming, called: list[Any]
    ) -> None:
        seen, rejected = register_steps(consuming, bad)
        with Batch(then=[("t", 2), ("t", 3)], **calls()) as batch:
            batch.publish("t", 1)
        consuming.drain()
        assert seen == [1, 2, 3][:bad]
        assert sorted(called) == ["failure", "finish"]
        assert (standing(batch.id).state, figures(batch.id)) == ("finished", (bad, bad - 1, 1))
        rejected.clear()
        assert retry_failed(batch.id) == 1
        consuming.drain()
        assert seen == sorted([1, 2, 3, bad])
        assert sorted(called) == ["failure", "finish", "success"]
        assert (standing(batch.id).state, figures(batch.id)) == ("succeeded", (3, 3, 0))

    def test_its_deadline_is_that_of_all_steps(self, consuming: Consuming, called: list[Any]) -> None:
        register_steps(consuming)
        with Batch(then=[("without-a-group", 2)], deadline=3600, **calls()) as batch:
            batch.publish("t", 1)
        consuming.drain()
        assert called == []
        BatchRow.objects.update(deadline_at="2020-01-01T00:00Z")
        ends.sweep(LOG)
        consuming.drain()
        assert called == ["failure"]

    def test_two_checks_of_the_same_standing_begin_a_step_once(self, consuming: Consuming) -> None:
        with Batch(then=[("t", 2), ("t", 3)]) as batch:
            batch.publish("without-a-group", 1)
        BatchRow.objects.filter(id=batch.id).update(sealed_at=DatabaseNow())
        BatchPart.objects.update(outstanding=0)
        (seen,) = standings(LOG, [batch.id])
        assert ends._end(LOG, seen)
        assert not ends._end(LOG, seen)
        assert list(Message.objects.filter(topic="t").values_list("payload", flat=True)) == [2]

    def test_a_step_is_published_whole_or_not_at_all(
        self, consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish = Block.publish

        def fail_once(block: Block, topic: str, message: Any) -> Any:
            if message.payload == "b":
                monkeypatch.setattr(Block, "publish", publish)
                raise ZeroDivisionError("as if it were killed here")
            return publish(block, topic, message)

        monkeypatch.setattr(Block, "publish", fail_once)
        with Batch(on_finish=(CALLED, "outer")) as outer, Batch(then=[[(CALLED, "a"), (CALLED, "b")]], parent=outer):
            pass
        assert not Message.objects.exists()
        ends.check(LOG, [outer.id])
        assert standing(outer.id).finished_at is None
        ends.sweep(LOG)
        consuming.drain()
        assert sorted(called) == ["a", "b", "outer"]

    def test_a_step_is_settled_by_the_groups_that_are_registered_when_it_begins(self, consuming: Consuming) -> None:
        register_steps(consuming)
        publish("u", "before")
        with Batch(then=[("u", 2)]) as batch:
            batch.publish("t", 1)
        register_group(LOG, "default", "u", "latest")
        consuming.consumer("u", lambda delivery: None)
        consuming.drain()
        assert (standing(batch.id).state, figures(batch.id)) == ("succeeded", (2, 2, 0))

    def test_a_chain_that_goes_on_after_a_replay_is_kept_as_long_again(
        self, consuming: Consuming, settings: Any
    ) -> None:
        _, rejected = register_steps(consuming, 1)
        with Batch(then=[("t", 2)]) as batch:
            batch.publish("t", 1)
        consuming.drain()
        BatchRow.objects.update(ended_at="2020-01-01T00:00Z")
        rejected.append(2)
        rejected.remove(1)
        assert replay("t") == 1
        consuming.drain()
        assert collect.collect(LOG) == 0
        settings.SQLQUEUE_BATCHES = {"RETENTION": 0}
        assert collect.collect(LOG) == 1
        assert get_batch(batch.id) is None


class TestABatchInsideAnother:
    def test_its_dead_letter_fails_those_around_it_once(self, consuming: Consuming, called: list[Any]) -> None:
        _, rejected = register_steps(consuming, 2)
        with Batch(**calls("outer ")) as outer, Batch(parent=outer) as middle:
            with Batch(then=[("t", 2), ("t", 3)], parent=middle) as chain:
                chain.publish("t", 1)
            outer.publish("without-a-group", 1)
        consuming.drain()
        assert called == ["outer failure"]
        status = standing(outer.id)
        assert (status.state, status.failed_at is not None) == ("running", True)
        rejected.clear()
        assert retry_failed(outer.id) == 1
        consuming.consumer("without-a-group", lambda delivery: None)
        consuming.drain()
        assert sorted(called) == ["outer failure", "outer finish", "outer success"]
        assert {standing(each.id).state for each in (outer, middle, chain)} == {"succeeded"}

    def test_a_failure_is_heard_of_when_the_next_sweep_finds_it_though_it_was_replayed_meanwhile(
        self, consuming: Consuming, called: list[Any]
    ) -> None:
        """As after a kill between the two."""
        register_steps(consuming)
        with Batch(**calls("outer ")) as outer, Batch(parent=outer) as inner:
            outer.publish("without-a-group", 1)
        BatchRow.objects.filter(id=inner.id).update(failed_at=DatabaseNow())
        ends.sweep(LOG)
        consuming.drain()
        assert called == ["outer failure"]

    def test_one_that_was_given_up_before_it_failed_fails_nothing(
        self, consuming: Consuming, called: list[Any]
    ) -> None:
        register_steps(consuming, 1)
        with Batch(**calls("outer ")) as outer, Batch(parent=outer) as inner:
            inner.publish("t", 1)
        inner.cancel()
        consuming.drain()
        assert sorted(called) == ["outer finish", "outer success"]

    def test_the_next_step_waits_for_the_batches_that_the_step_has_made(
        self, consuming: Consuming, called: list[Any]
    ) -> None:
        def handle(delivery: Delivery) -> None:
            with Batch(parent=Batch.of(delivery), then=[(CALLED, "inside")]) as inner:
                inner.publish("u", 1)

        register(consuming, "sync", handle)
        consuming.consumer("u", lambda delivery: None)
        with Batch(then=[(CALLED, "next")], on_finish=(CALLED, "finish")) as batch:
            batch.publish("t", 1)
        consuming.drain()
        assert called == ["inside", "next", "finish"]
        assert standing(batch.id).state == "succeeded"
