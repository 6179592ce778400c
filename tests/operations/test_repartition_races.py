"""A row of the publish gate turns between a statement's refusal and the question why: the message is published all the
same, however it is published."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections, transaction

from sqlqueue import NewMessage, publish, publish_many, publish_on_commit
from sqlqueue.database import gate, insert_sql, retries, turning
from sqlqueue.database.log import Log, forget_layouts
from sqlqueue.log.layout_changes import under_way
from sqlqueue.models import Message, Topic
from sqlqueue.operations import repartition
from sqlqueue.operations.repartition import Repartition, begin

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql")]

TOPIC, ALIAS = "orders", "default"


def on_commit() -> None:
    with transaction.atomic():
        publish_on_commit(TOPIC, 1, id="on commit")


def in_a_transaction() -> None:
    with transaction.atomic():
        publish(TOPIC, 1)


WAYS: dict[str, Callable[[], object]] = {
    "publish": lambda: publish(TOPIC, 1),
    "with an id": lambda: publish(TOPIC, 1, id="x"),
    "publish_on_commit": on_commit,
    "publish_many": lambda: publish_many(TOPIC, [1]),
    "publish_many with ids": lambda: publish_many(TOPIC, [NewMessage(1, id="y")]),
    "in a transaction": in_a_transaction,
}


@pytest.fixture
def last_row(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The topic's second change has turned all rows of the gate but the last one, which the next statement takes; this
    process has learned the generation from another row. Returns what turns the last row, as another process does."""
    forget_layouts()
    Topic.objects.create(name=TOPIC, partitions=4)
    begin(Log.of(ALIAS), TOPIC, 5)
    list(Repartition(Log.of(ALIAS)).run(0))
    publish(TOPIC, 0)
    begin(Log.of(ALIAS), TOPIC, 6)
    change = under_way(Log.of(ALIAS))
    assert change is not None
    *others, last = turning.behind(Log.of(ALIAS), turning.GATE_ROWS, change.generation)

    def turn(rows: list[int]) -> None:
        switch = (change, turning.GATE_ROWS, change.generation, rows)
        with ThreadPoolExecutor(1) as another:
            another.submit(retries.run, Log.of(ALIAS), repartition._switch, Log.of(ALIAS), *switch).result()
            another.submit(connections.close_all).result()

    turn(others)
    gate.learn(Log.of(ALIAS), others[0], Log.of(ALIAS).layout)
    monkeypatch.setattr(insert_sql, "slot", lambda: last)
    return lambda: turn([last])


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_turns_while_a_publisher_asks_keeps_no_message_out(
    way: str, last_row: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Message.objects.count()
    turned: list[bool] = []

    learn = gate.learn

    def learn_late(*asked: object) -> object:
        if not turned:
            turned.append(True)
            last_row()
        return learn(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(gate, "learn", learn_late)
    WAYS[way]()
    assert turned
    assert Message.objects.count() == before + 1
