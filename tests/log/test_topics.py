"""Topics come into being with their first use, whatever transaction that happens in."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue import ConfigurationError, publish
from sqlqueue.database.log import Log
from sqlqueue.log import topics
from sqlqueue.models import Topic
from tests.logs import LOG
from tests.servers.session import isolate
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_transaction_with_an_older_snapshot_can_publish_to_a_new_topic() -> None:
    try:
        isolate("repeatable read")
        with transaction.atomic():
            assert Topic.objects.count() == 0  # the snapshot
            publish("new", 1)
    finally:
        connections.close_all()
    assert Topic.objects.get().name == "new"


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_transaction_with_an_older_snapshot_knows_what_is_declared_since(settings: object) -> None:
    settings.SQLQUEUE = {"TOPICS": {"orders": {}}}
    try:
        isolate("repeatable read")
        with transaction.atomic(), OpenTransaction() as other:
            assert Topic.objects.count() == 0  # the snapshot
            other.do(lambda: topics.insert(LOG, "new", 3))
            other.commit()
            publish("new", 1)
            with pytest.raises(ConfigurationError, match="not declared"):
                publish("newer", 1)
    finally:
        connections.close_all()
    assert Topic.objects.get().partitions == 3


def test_a_dead_letter_topic_has_the_partitions_of_its_topic(settings: object) -> None:
    settings.SQLQUEUE = {"TOPICS": {"t": {"partitions": 5}}, "PARTITIONS": 3}
    assert topics.dead_letters(LOG, "t").partitions == 5
    assert topics.topic_info(LOG, "t_dlq").partitions == 5


def test_a_topic_that_is_dropped_while_it_is_looked_up_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the INSERT, which finds its row, and the read of what is stored."""
    aside, dropped = topics.aside, []

    @contextmanager
    def dropping(log: Log) -> Iterator[Callable[[str, Any], Any]]:
        with aside(log) as run:

            def then(text: str, values: Any) -> Any:
                cursor = run(text, values)
                if text.startswith("INSERT") and not dropped:
                    dropped.append(Topic.objects.all().delete())
                return cursor

            yield then

    monkeypatch.setattr(topics, "aside", dropping)
    assert topics.insert(LOG, "t", 3).partitions == 3
    assert dropped
    assert Topic.objects.get().partitions == 3
