"""HandOver beside batches of members, filters, limits, a retry budget, hooks after the commit, and async loops."""

from collections import Counter
from typing import Any

import pytest
from django.db import transaction

from sqlqueue import Batch, HandOver, Retry, asubscribe, get_batch, publish, publish_many
from sqlqueue.conf import settings as options
from sqlqueue.contrib.people import work_on
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database.log import Log
from sqlqueue.models import Message
from sqlqueue.stats.survey import survey
from tests.app.models import Effect
from tests.asynchronous.loops import in_loop
from tests.consuming import QUICK, Consuming
from tests.contrib.batches.following import CALLED, counted, figures, register

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]
ONE_PARTITION = {**QUICK, "PARTITIONS": 1}


@pytest.mark.parametrize("kind", ["sync", "atomic", "async", "batch", "atomic batch"])
def test_members_of_a_batch_that_are_handed_over_are_done_and_counted_once(consuming: Consuming, kind: str) -> None:
    called: list[str] = []
    consuming.consumer(CALLED, lambda delivery: called.append(delivery.payload))

    def handle(delivery: Any) -> None:
        if delivery.payload % 3 == 0:
            raise HandOver("a third")

    register(consuming, kind, handle)
    with Batch(on_finish=(CALLED, "finish"), on_success=(CALLED, "success"), on_failure=(CALLED, "failure")) as batch:
        batch.publish_many("t", [NewMessage(n, key=str(n % 4)) for n in range(18)])
    consuming.drain()
    assert figures(batch.id) == (18, 18, 0)
    assert counted(batch.id) == (18, 0)
    assert sorted(called) == ["finish", "success"]
    assert Counter(item.payload for item in WorkItem.objects.all()) == Counter(range(0, 18, 3))


def test_a_batch_of_messages_that_people_work_on_is_done_when_they_have_them(
    consuming: Consuming, settings: Any
) -> None:
    settings.SQLQUEUE = QUICK
    work_on("refunds", every_message=True)
    with Batch() as batch:
        batch.publish_many("refunds", range(10))
    consuming.drain()
    status = get_batch(batch.id)
    assert status is not None
    assert (status.total, status.done, status.failed) == (10, 10, 0)
    assert WorkItem.objects.count() == 10


@pytest.mark.parametrize("kind", ["sync", "atomic", "async", "batch"])
def test_a_group_with_filters_and_limits_hands_over_what_passes_its_filter(consuming: Consuming, kind: str) -> None:
    def handle(delivery: Any) -> None:
        raise HandOver(str(delivery.payload))

    limits: dict[str, Any] = {"where": {"headers.country": "DE"}, "rate_limit": "1000/s", "concurrency_limit": 2}
    if kind != "batch":
        limits |= {"rate_limit_per_key": "1000/s"}
    register(consuming, kind, handle, **limits)
    publish_many("t", [NewMessage(n, key=str(n % 3), headers={"country": "DE" if n % 2 else "FR"}) for n in range(30)])
    consuming.drain()
    assert sorted(item.payload for item in WorkItem.objects.all()) == list(range(1, 30, 2))
    assert not Message.objects.dead_letters().exists()


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_a_batch_that_is_taken_apart_spends_no_retry_budget(consuming: Consuming, settings: Any, atomic: bool) -> None:
    settings.SQLQUEUE = ONE_PARTITION

    def handle(deliveries: list[Any]) -> None:
        for delivery in deliveries:
            if delivery.payload % 2:
                raise HandOver("odd")

    consuming.consumer("t", handle, batch=True, atomic=atomic, retry_budget="2/h")
    publish_many("t", range(40))
    consuming.drain()
    assert WorkItem.objects.count() == 20
    assert not survey(Log.of(options.DATABASE)).groups[0].budget_spent


@pytest.mark.parametrize("error", [HandOver("look"), Retry("again", delay=0), ValueError("no")], ids=repr)
def test_what_a_hook_raises_after_the_commit_changes_nothing(consuming: Consuming, error: Exception) -> None:
    """The handler's transaction has acked: it is neither run again nor handed over."""

    def hook() -> None:
        raise error

    def handle(delivery: Any) -> None:
        Effect.objects.create(name="seen", value=str(delivery.payload))
        transaction.on_commit(hook)

    consuming.consumer("t", handle, atomic=True)
    publish_many("t", [NewMessage(n, key="a") for n in range(3)])
    consuming.drain()
    assert sorted(Effect.objects.values_list("value", flat=True)) == ["0", "1", "2"]
    assert not WorkItem.objects.exists()
    assert not Message.objects.dead_letters().exists()


def test_an_async_pull_loop_hands_over_too(consuming: Consuming) -> None:
    publish("t", {"amount": 700}, id="a")

    async def main() -> None:
        async with asubscribe("t", group="pull", timeout=60) as deliveries:
            delivery = await anext(deliveries)
            await delivery.afail(HandOver("look", form={"x": 1}))
            await delivery.afail(HandOver("look", form={"x": 1}))
            assert delivery.settled == "fail"

    in_loop(main())
    item = WorkItem.objects.get()
    assert (item.consumer_group, item.reason, item.form) == ("pull", "look", {"x": 1})
