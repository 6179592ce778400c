"""Where every offset is visible, the horizon is known without the gate; a number that is lost is waited for once."""

from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue import publish
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.log_end import LogEnd
from sqlqueue.consumers.engine.ownership import WorkingSet
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.models import Offset
from tests.consumers.test_many_subscribers import probes, publish_behind_a_gap
from tests.consumers.test_pace import counted
from tests.consumers.test_reading import OpenPublish
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql", "postgresql")]


@pytest.fixture
def hosted(settings: object) -> Subscriber:
    settings.SQLQUEUE = {
        "TOPICS": {"t": {"partitions": 1}},
        "WAKE": False,
        "LEASE_DURATION": 3600,
        "BALANCE_INTERVAL": 1800,
    }
    publish("t", "first")
    consumers = [replace(build("t", {"group": "g"}), handler=lambda _: None)]
    subscriber = Subscriber(consumers, background_tasks=False, pool=InlinePool)
    subscriber.start()
    looks(subscriber, 3)
    yield subscriber
    subscriber.close()


def looks(hosted: Subscriber, times: int) -> list[str]:
    """Let it poll so often; return its statements."""
    with CaptureQueriesContext(connection) as queries:
        for _ in range(times):
            hosted._notified, hosted._poll_at = False, 0.0
            hosted.run_once()
    return [query["sql"] for query in queries]


def watches(statements: list[str]) -> int:
    return counted(statements, "COUNT(*)", "GROUP BY")


def position() -> int:
    return Offset.objects.get(topic="t", consumer_group="g").position


def test_a_log_without_gaps_needs_no_gate(hosted: Subscriber) -> None:
    for _ in range(3):
        offset = publish("t", 1).offset
        statements = looks(hosted, 3)
        assert (probes(statements), watches(statements)) == (0, 1)
        assert position() == offset


def test_behind_a_number_that_is_lost_the_gate_is_asked_once(hosted: Subscriber) -> None:
    offset = publish_behind_a_gap(1)
    statements = looks(hosted, 3)
    assert (probes(statements), watches(statements)) == (1, 2)
    assert position() == offset
    for probed in (1, 0):  # after a gap it does not count the next time
        offset = publish("t", 2).offset
        statements = looks(hosted, 3)
        assert (probes(statements), watches(statements)) == (probed, 1)
        assert position() == offset


def test_an_open_transaction_is_waited_for_at_the_gate(hosted: Subscriber) -> None:
    before = position()
    slow = OpenPublish("slow", key="a")
    offset = publish("t", 1).offset
    statements = looks(hosted, 3)
    assert probes(statements) == 3, "the gate is asked at each look until no transaction holds it"
    assert watches(statements) <= 3, "and the offsets are counted once, not at each look"
    assert position() == before
    slow.commit()
    looks(hosted, 3)
    assert position() == offset


def test_what_is_seen_without_the_gate_ends_its_question() -> None:
    """The transactions that it has waited for have ended. Else those that come later would not count."""
    publish("t", 0)
    of_one = LogEnd(LOG, ServerIdentity(LOG))
    for _ in range(2):
        of_one.look(WorkingSet(), 0.0)
    slow = OpenPublish("slow", key="a")
    end = publish("t", 1).offset
    assert of_one.horizon.probe(end) < end
    slow.commit()
    of_one.look(WorkingSet(), 1.0)
    assert of_one.horizon.value == end
    assert not of_one.horizon.waits_for
    another = OpenPublish("another", key="b")
    last = publish("t", 2).offset
    for now in (2.0, 3.0, 4.0):
        of_one.look(WorkingSet(), now)
        assert of_one.horizon.value < last
    another.commit()
    for now in (5.0, 6.0):
        of_one.look(WorkingSet(), now)
    assert of_one.horizon.value == last
