"""PostgreSQL with OPTIONS = {"server_side_binding": True}: the server itself finds out what type each value is of."""

from collections.abc import Iterator

import pytest
from django.db import connection, connections

from sqlqueue import NewMessage, Reject, Retry, publish, publish_many, replay
from sqlqueue.log.collect import collect
from sqlqueue.models import Message, Receipt
from sqlqueue.operations.reschedule import republish
from sqlqueue.stats.dead_letters import failures
from sqlqueue.stats.survey import survey
from tests.consuming import QUICK, Consuming
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("postgresql")]

HEAVY = "a" * 100_000


@pytest.fixture
def binding(consuming: Consuming) -> Iterator[None]:
    options = connection.settings_dict["OPTIONS"]
    connections.close_all()
    options["server_side_binding"] = True
    try:
        yield
    finally:
        consuming.end_hosts()
        del options["server_side_binding"]
        connections.close_all()


def test_every_way_through_the_queue_works(binding: None, settings, consuming: Consuming) -> None:
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 2, "priorities": 2, "history": "all"}}}
    seen: list[object] = []

    @consuming.consumer("t", max_attempts=2)
    def handle(delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload in ("dead", HEAVY) and seen.count(delivery.payload) == 1:
            raise Reject("no")
        if delivery.payload == "retry" and delivery.attempt == 1:
            raise Retry(delay=0)

    first = publish("t", "a", priority=1)
    assert publish("t", "b", id="1", key="k", headers={"a": 1}).created
    assert not publish("t", "b", id="1", key="k").created
    assert publish_many("t", [NewMessage("dead", id="x"), NewMessage("retry", key="k"), NewMessage("dead", id="x")])
    publish("t", "later", delay=0)
    publish("t", HEAVY, headers={"h": 1}, delay=0)
    publish("t", HEAVY + "b", headers={"h": 1})
    consuming.drain()
    assert sorted(map(str, seen)) == sorted(["a", "b", "dead", "retry", "retry", "later", HEAVY, HEAVY + "b"])
    assert Message.objects.filter(topic="t_dlq").count() == 2
    assert failures(LOG, ["t"]).kinds[0].dead_letters == 2
    assert len(survey(LOG).groups) == 1
    assert replay("t") == 2
    heavy = Message.objects.get(topic="t", payload=HEAVY + "b")
    assert republish("t", "default", [heavy.offset], delay=0.001) + republish("t", "default", [first.offset]) == 2
    consuming.drain()
    assert seen.count("dead") == seen.count(HEAVY) == seen.count(HEAVY + "b") == seen.count("a") == 2
    assert Receipt.objects.count() == 12 + 2  # those of the replays
    collect(LOG)
