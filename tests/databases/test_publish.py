"""Publishing with several databases: each key on its own, and nothing in a transaction that could not commit with
it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.db import Error, connections, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue import (
    ConfigurationError,
    InvalidMessage,
    NewMessage,
    cancel,
    get_scheduled,
    get_status,
    publish,
    publish_many,
    publish_on_commit,
)
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.declare.relays import of_database
from sqlqueue.core.keys import database_of
from sqlqueue.core.relay import relay_topic
from sqlqueue.database.log import Log
from sqlqueue.log.schedule import move_due
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import Message, ScheduledMessage, Topic
from tests.databases.aliases import BOTH, A, B, b_is_down
from tests.management.running import run

pytestmark = pytest.mark.usefixtures("databases")

KEYS = [f"key-{number}" for number in range(200)]
OF_A, OF_B = (next(key for key in KEYS if database_of(key, BOTH) == alias) for alias in BOTH)


def stored(alias: str, topic: str = "t") -> list[Any]:
    """Return the payloads of a topic's messages on a database."""
    return list(Message.objects.using(alias).filter(topic=topic).order_by("offset").values_list("payload", flat=True))


def test_each_key_is_on_its_own_database_and_every_partition_of_each_has_keys() -> None:
    publish_many("t", [NewMessage(key, key=key) for key in KEYS])
    for alias in BOTH:
        assert stored(alias) == [key for key in KEYS if database_of(key, BOTH) == alias]
        assert set(Message.objects.using(alias).values_list("partition", flat=True)) == {0, 1, 2, 3}
    assert publish("t", 1, key=OF_B).database == B


def test_keyless_messages_are_spread_and_those_of_an_id_are_together() -> None:
    for number in range(40):
        publish("t", number)
    assert stored(A)
    assert stored(B)
    assert len(stored(A)) + len(stored(B)) == 40
    first, second = publish("t", 1, id="one"), publish("t", 1, id="one")
    assert (first.status, second.status, second.offset) == ("created", "ignored", first.offset)
    status = get_status("t", id="one")
    assert status is not None
    assert status.database == first.database == database_of("one", BOTH)


@pytest.mark.parametrize("alias", [A, B])
def test_a_keyless_one_goes_to_the_database_of_the_open_transaction(alias: str) -> None:
    with transaction.atomic(using=alias):
        published = [publish("t", number) for number in range(10)]
    assert stored(alias) == list(range(10))
    assert get_status("t", id=published[0].id) is not None  # whatever database its id would belong to


def test_what_is_not_on_one_that_is_down_is_found() -> None:
    with transaction.atomic(using=A):
        ids = [publish("t", number).id for number in range(20)]
    id = next(id for id in ids if database_of(id, BOTH) == B)
    with b_is_down():
        assert get_status("t", id=id) is not None  # although its id would belong to b
        with pytest.raises(Error):
            get_status("t", id="unknown")  # it may be there


@pytest.mark.parametrize(("alias", "key"), [(A, OF_B), (B, OF_A)])
def test_a_transaction_on_another_database_is_refused_with_what_to_do_instead(alias: str, key: str) -> None:
    with transaction.atomic(using=alias):
        for refused in (
            lambda: publish("t", 1, key=key),
            lambda: publish("t", 1, key=key, delay=5),
            lambda: publish_many("t", [NewMessage(1, key=OF_A), NewMessage(1, key=OF_B)]),
        ):
            with pytest.raises(InvalidMessage, match="publish_on_commit, or relay=True"):
                refused()
        publish_on_commit("t", 1, key=key)
        assert not stored(A) + stored(B)
    assert not stored(alias)
    assert stored(A) + stored(B) == [1]


def test_a_transaction_on_its_own_database_decides_over_it() -> None:
    with transaction.atomic(using=B):
        publish("t", 1, key=OF_B)
        transaction.set_rollback(True, using=B)
    with transaction.atomic(using=A), transaction.atomic(using=B):
        publish_many("t", [NewMessage(2, key=OF_A), NewMessage(3, key=OF_B)])
    assert (stored(A), stored(B)) == ([2], [3])


@pytest.mark.parametrize("commits", [True, False])
def test_relay_commits_with_the_callers_transaction(commits: bool) -> None:
    try:
        with transaction.atomic(using=A):
            published = publish("t", 1, key=OF_B, relay=True)
            assert (published.offset, published.status, published.database) == (None, "created", B)
            publish_many("t", [NewMessage(2, key=OF_A), NewMessage(3, key=OF_B)], relay=True)
            if not commits:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert stored(A, relay_topic(B)) == ([1, 3] if commits else [])
    assert stored(A) == ([2] if commits else [])


def test_relay_makes_all_of_publish_many_one_transaction() -> None:
    publish_many("t", [NewMessage(1, key=OF_A), NewMessage(2, key=OF_B), NewMessage(3, key=OF_A)], relay=True)
    assert (stored(A), stored(B)) == ([1, 3], [])
    assert stored(A, relay_topic(B)) == [2]


def test_relay_refuses_what_only_the_other_database_could_answer() -> None:
    with transaction.atomic(using=A):
        with pytest.raises(InvalidMessage, match="unique_for cannot be relayed"):
            publish("t", 1, key=OF_B, unique_for="key", relay=True)
        with pytest.raises(InvalidMessage, match="'replace' cannot be relayed"):
            publish("t", 1, key=OF_B, id="i", on_conflict="replace", relay=True)


def test_scheduled_messages_are_on_their_database() -> None:
    publish("t", 1, key=OF_B, id="later", delay=60)
    assert ScheduledMessage.objects.using(B).count() == 1
    found = get_scheduled("t", id="later", key=OF_B)
    assert found is not None
    assert found.payload == 1
    assert cancel("t", id="later", key=OF_B)
    assert not ScheduledMessage.objects.using(B).exists()


def test_unique_for_holds_on_the_keys_database() -> None:
    first = publish("t", 1, key=OF_B, unique_for="key")
    assert publish("t", 2, key=OF_B, unique_for="key").id == first.id
    assert (stored(A), stored(B)) == ([], [1])


def use(settings: Any, databases: dict[str, Any], **topics: Sequence[str]) -> None:
    """Let another process publish, whose settings say that topics are on these databases."""
    settings.SQLQUEUE = databases | {"TOPICS": {topic: {"databases": list(on)} for topic, on in topics.items()}}
    forget_topics()


@pytest.mark.parametrize(("first", "later"), [(BOTH, [A]), ([A], BOTH), ([A], [B]), ([B], BOTH)])
def test_a_changed_list_of_databases_is_refused_with_what_to_do(
    first: Sequence[str], later: Sequence[str], databases: dict[str, Any], settings: Any
) -> None:
    use(settings, databases, t=first)
    for key in (OF_A, OF_B):
        publish("t", 1, key=key)
    use(settings, databases, t=later)
    for key in (OF_A, OF_B):
        for attempt in (
            lambda key=key: publish("t", 2, key=key),
            lambda key=key: publish_many("t", [NewMessage(2, key=key)]),
        ):
            with pytest.raises(ConfigurationError, match=r"keys would move, and their order be lost\. Let TOPICS"):
                attempt()
    assert {*stored(A), *stored(B)} == {1}
    use(settings, databases, t=first)
    publish("t", 3, key=OF_A)


def test_a_topic_is_moved_on_purpose(databases: dict[str, Any], settings: Any) -> None:
    """Created on its new database, it is published there; the former one is drained."""
    use(settings, databases, t=[A])
    publish("t", "before", key="k")
    use(settings, databases, t=[B])
    done = run("queuetopic", "create", "t")
    assert done.code == 0, done
    publish("t", "after", key="k")
    assert (stored(A), stored(B)) == (["before"], ["after"])
    drained = of_database(Log.of(A), [replace(build("t", {}), handler=print)])
    assert [one.topic for one in drained or []] == ["t"]


def test_its_list_is_stored_with_it_on_each_of_its_logs() -> None:
    publish_many("t", [NewMessage(1, key=OF_A), NewMessage(1, key=OF_B)])
    publish("mine", 1)
    rows = [(alias, *row) for alias in BOTH for row in Topic.objects.using(alias).values_list("name", "databases")]
    assert sorted(rows) == [(A, "mine", ""), (A, "t", ",".join(BOTH)), (B, "t", ",".join(BOTH))]


def test_a_row_of_plain_sql_on_the_wrong_database_is_refused_with_the_right_one() -> None:
    publish("t", 0, key=OF_A)
    ScheduledMessage.objects.using(A).create(topic="t", partition_key=OF_B, payload=1)
    move_due(Log.of(A))
    assert f"belongs on database '{B}'" in (ScheduledMessage.objects.using(A).get().refusal or "")


def test_no_statement_is_added(databases: dict[str, Any], settings: Any) -> None:
    costs = []
    for setting in ({name: value for name, value in databases.items() if name != "TOPICS"}, databases):
        settings.SQLQUEUE = setting
        forget_topics()
        topic = "t" if "TOPICS" in setting else "alone"
        publish(topic, 0, key=OF_A)
        with CaptureQueriesContext(connections[A]) as queries:
            publish(topic, 1, key=OF_A)
        costs.append(len(queries))
    assert costs == [1, 1]
