"""What collection costs: for each portion of a thousand messages, and where there is nothing to collect.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from typing import Any

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.database.horizon import Horizon
from sqlqueue.log import retention
from sqlqueue.log.collect import BATCH, collect, collect_topic
from tests.counting import Cost, Costs, counted
from tests.factories import ResultFactory, now
from tests.logs import LOG
from tests.steady import SETTINGS, Steady

pytestmark = pytest.mark.django_db(transaction=True)

# Of a topic that one group reads and has acked: its options, how many portions it has, and the cost.
COLLECTED: dict[str, tuple[dict[str, Any], int, Costs]] = {
    "nothing": ({}, 0, Cost(3, 0, 0)),
    "nothing in four partitions": ({"partitions": 4}, 0, Cost(3, 0, 0)),
    "one portion": ({}, 1, Cost(9, 3, 1001)),
    "two portions": ({}, 2, Cost(19, 6, 2002)),
    "two portions of four partitions": ({"partitions": 4}, 2, Cost(15, 6, 2002)),
    "one portion that is kept": ({"keep_collected": 60}, 1, Cost(17, 5, 2001)),
    "nothing yet, by its acks": ({"retention": 60, "retention_from": "acked"}, 0, Cost(8, 0, 0)),
}


@pytest.mark.parametrize("what", COLLECTED)
def test_portions_of_a_topic(what: str, steady: Steady, settings: Any) -> None:
    options, portions, expected = COLLECTED[what]
    settings.SQLQUEUE = {**SETTINGS, "TOPICS": {"old": {"retention": 0, **options}}}
    publish_many("old", [NewMessage(n, key=f"{n}") for n in range(portions * BATCH)] or ["one"])
    steady.start(lambda deliveries: None, topic="old", batch=True, batch_size=500)
    horizon = Horizon(LOG).wait()
    if not portions:
        collect_topic(LOG, "old", horizon, 100)
    with counted() as counter:
        assert collect_topic(LOG, "old", horizon, 100)[0] == portions * BATCH
    counter.check(expected)


def test_a_collection_of_everything_that_finds_nothing(steady: Steady) -> None:
    horizon = Horizon(LOG)
    horizon.wait()
    with counted() as counter:
        assert collect(LOG, horizon).messages == 0
    counter.check(Cost(9, 0, 0))


def test_a_portion_of_results(transactional_db: None) -> None:
    ResultFactory.create_batch(100, expires_at=now())
    with counted() as counter:
        assert retention.sweep_results(LOG) == 100
    counter.check(Cost(3, 1, 100))
