"""Publishing with several shards: each key on its own, and nothing in a transaction that could not commit with it."""

from collections import Counter
from typing import Any

import pytest
from django.db import Error, connections, transaction

from sqlqueue import (
    InvalidMessage,
    NewMessage,
    cancel,
    get_scheduled,
    get_status,
    publish,
    publish_many,
    publish_on_commit,
)
from sqlqueue.core.shards import shard_of
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import Message, RelayedMessage, ScheduledMessage, Topic
from tests.shards.aliases import A, B, b_is_down

pytestmark = pytest.mark.usefixtures("shards")

ALIASES = {"a": A, "b": B}
KEYS = [f"key-{number}" for number in range(200)]
OF_A, OF_B = (next(key for key in KEYS if shard_of(key, ["a", "b"]) == shard) for shard in ("a", "b"))


def stored(alias: str, topic: str = "t") -> list[Any]:
    """Return the payloads of a topic's messages on a shard."""
    return list(Message.objects.using(alias).filter(topic=topic).order_by("offset").values_list("payload", flat=True))


def test_each_key_is_on_its_own_shard_and_every_partition_of_each_has_keys() -> None:
    publish_many("t", [NewMessage(key, key=key) for key in KEYS])
    for shard, alias in ALIASES.items():
        assert stored(alias) == [key for key in KEYS if shard_of(key, ["a", "b"]) == shard]
        assert set(Message.objects.using(alias).values_list("partition", flat=True)) == {0, 1, 2, 3}
    assert publish("t", 1, key=OF_B).shard == "b"


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
    assert status.shard == first.shard == shard_of("one", ["a", "b"])


@pytest.mark.parametrize("alias", [A, B])
def test_a_keyless_one_goes_to_the_shard_of_the_open_transaction(alias: str) -> None:
    with transaction.atomic(using=alias):
        published = [publish("t", number) for number in range(10)]
    assert stored(alias) == list(range(10))
    assert get_status("t", id=published[0].id) is not None  # whatever shard its id would belong to


def test_what_is_not_on_one_that_is_down_is_found() -> None:
    with transaction.atomic(using=A):
        ids = [publish("t", number).id for number in range(20)]
    id = next(id for id in ids if shard_of(id, ["a", "b"]) == "b")
    with b_is_down():
        assert get_status("t", id=id) is not None  # although its id would belong to b
        with pytest.raises(Error):
            get_status("t", id="unknown")  # it may be there


@pytest.mark.parametrize(("alias", "key"), [(A, OF_B), (B, OF_A)])
def test_a_transaction_on_another_shard_is_refused_with_what_to_do_instead(alias: str, key: str) -> None:
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


def test_a_transaction_on_its_own_shard_decides_over_it() -> None:
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
            assert (published.offset, published.status, published.shard) == (None, "created", "b")
            publish_many("t", [NewMessage(2, key=OF_A), NewMessage(3, key=OF_B)], relay=True)
            if not commits:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    waiting = RelayedMessage.objects.using(A).order_by("id").values_list("payload", flat=True)
    assert list(waiting) == (["1", "3"] if commits else [])
    assert stored(A) == ([2] if commits else [])


def test_relay_makes_all_of_publish_many_one_transaction() -> None:
    publish_many("t", [NewMessage(1, key=OF_A), NewMessage(2, key=OF_B), NewMessage(3, key=OF_A)], relay=True)
    assert (stored(A), stored(B)) == ([1, 3], [])
    assert RelayedMessage.objects.using(A).count() == 1


def test_relay_refuses_what_only_the_other_shard_could_answer() -> None:
    with transaction.atomic(using=A):
        with pytest.raises(InvalidMessage, match="unique_for cannot be relayed"):
            publish("t", 1, key=OF_B, unique_for="key", relay=True)
        with pytest.raises(InvalidMessage, match="'replace' cannot be relayed"):
            publish("t", 1, key=OF_B, id="i", on_conflict="replace", relay=True)


def test_scheduled_messages_are_on_their_shard() -> None:
    publish("t", 1, key=OF_B, id="later", delay=60)
    assert ScheduledMessage.objects.using(B).count() == 1
    found = get_scheduled("t", id="later", key=OF_B)
    assert found is not None
    assert found.payload == 1
    assert cancel("t", id="later", key=OF_B)
    assert not ScheduledMessage.objects.using(B).exists()


def test_unique_for_holds_on_the_keys_shard() -> None:
    first = publish("t", 1, key=OF_B, unique_for="key")
    assert publish("t", 2, key=OF_B, unique_for="key").id == first.id
    assert (stored(A), stored(B)) == ([], [1])


def test_a_topics_shards_are_fixed_with_it_on_each_shard(shards: dict[str, Any], settings: Any) -> None:
    settings.SQLQUEUE = shards | {"TOPICS": {"t": {"shards": ["b"]}, "u": {}}}
    publish("t", 1, key=OF_A)
    publish("u", 1, key=OF_A)
    forget_topics()
    settings.SQLQUEUE = shards | {"TOPICS": {"t": {}, "u": {"shards": ["a"]}}}
    publish("t", 2, key=OF_A)
    publish("u", 2, key=OF_B)
    assert (stored(A), stored(B)) == ([], [1, 2])
    assert (stored(A, "u"), stored(B, "u")) == ([1], [2])
    assert Counter(Topic.objects.using(A).values_list("name", "shards")) == {("t", "b"): 1, ("u", "a,b"): 1}
    assert Counter(Topic.objects.using(B).values_list("name", "shards")) == {("t", "b"): 1, ("u", "a,b"): 1}


def test_a_topic_of_the_time_before_shards_stays_where_it_is(shards: dict[str, Any], settings: Any) -> None:
    settings.SQLQUEUE = {name: value for name, value in shards.items() if name != "SHARDS"}
    for key in KEYS[:20]:
        publish("t", key, key=key)
    settings.SQLQUEUE = shards
    forget_topics()
    for key in KEYS[20:40]:
        publish("t", key, key=key)
    assert stored(A) == KEYS[:40]
    assert not stored(B)


def test_without_shards_no_statement_is_added(shards: dict[str, Any], settings: Any) -> None:
    from django.test.utils import CaptureQueriesContext

    settings.SQLQUEUE = {name: value for name, value in shards.items() if name != "SHARDS"}
    publish("t", 0, key="k")
    with CaptureQueriesContext(connections[A]) as alone:
        publish("t", 1, key="k")
    settings.SQLQUEUE = shards
    publish("u", 0, key=OF_A)
    with CaptureQueriesContext(connections[A]) as sharded:
        publish("u", 1, key=OF_A)
    assert len(alone) == len(sharded) == 1
