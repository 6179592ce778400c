"""`queuetopic alter NAME --shards …`: keys go over to other shards, and stay in order."""

import json
import random
import re
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import pytest
from django.db import Error, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sqlqueue import (
    Batch,
    InvalidMessage,
    NewMessage,
    cancel,
    consumer,
    get_batch,
    get_scheduled,
    get_status,
    publish,
    publish_many,
)
from sqlqueue.conf import settings as queue_settings
from sqlqueue.consumers.background.relay import RelayTask
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.consumers.registry import registry
from sqlqueue.consumers.subscriber import Subscriber
from sqlqueue.core.shards import shard_of
from sqlqueue.database import known_layouts, retries
from sqlqueue.database.generations import Moved
from sqlqueue.database.known_layouts import forget_layouts
from sqlqueue.database.statements import execute
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import grants, placement, relay_moves, relay_redirect
from sqlqueue.log.change_state import under_way
from sqlqueue.log.granted import GrantsLeft
from sqlqueue.log.placement import newest_placement
from sqlqueue.log.reshard_state import stored_spread
from sqlqueue.log.shard_publish import until_placed
from sqlqueue.log.succession import may_start
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import (
    BatchPart,
    ConsumerGroup,
    EpochGrant,
    EpochStart,
    Message,
    PartitionLease,
    RelayedMessage,
    Result,
    SubscriberHeartbeat,
    Topic,
)
from sqlqueue.models.partition_lease import WAITS
from sqlqueue.operations.move import move
from sqlqueue.operations.repartition import Repartition
from sqlqueue.operations.reshard import Reshard, announce_at, begin
from sqlqueue.testing import drain
from sqlqueue.version import __version__
from tests.management.running import run
from tests.processes import ManageCommands, wait_until
from tests.shards.aliases import A, B, b_is_down
from tests.shards.orders import ALTER, KEYS, MOVED, STAYS, TOPIC
from tests.shards.publishers import Publishers

pytestmark = [pytest.mark.usefixtures("handled"), pytest.mark.long("mariadb", "mysql", "postgresql")]

GATED = pytest.mark.database("mariadb", "mysql", "postgresql")


def alter(*shards: str) -> None:
    done = run("queuetopic", "alter", TOPIC, "--shards", ",".join(shards), "--no-input")
    assert done.code == 0, done


def there(alias: str) -> list[tuple[str, int]]:
    rows = Message.objects.using(alias).filter(topic=TOPIC).order_by("offset")
    return list(rows.values_list("partition_key", "payload"))


def test_keys_that_have_moved_are_published_to_their_new_shard() -> None:
    alter("a", "b")
    shards = {key: publish(TOPIC, 1, key=key).shard for key in KEYS}
    assert shards == {key: shard_of(key, "ab") for key in KEYS}
    assert sorted(there(B)) == [(key, 1) for key in MOVED]
    forget_topics()  # as another process
    assert {key: publish(TOPIC, 2, key=key).shard for key in KEYS} == shards
    publish_many(TOPIC, [NewMessage(3, key=key) for key in KEYS])
    assert sorted(there(B)) == sorted((key, n) for key in MOVED for n in (1, 2, 3))
    placed = newest_placement(TOPIC)
    assert placed is not None
    assert placed.shards == ("a", "b")
    assert [Topic.objects.using(alias).get(name=TOPIC).shards for alias in (A, B)] == ["a;a,b"] * 2


def test_a_group_begins_on_a_new_shard_behind_the_former_one(handled: list[tuple[str, int]]) -> None:
    alter("a", "b")
    publish_many(TOPIC, [NewMessage(1, key=key) for key in KEYS])
    drain()
    assert sorted(handled) == sorted((key, n) for key in KEYS for n in (0, 1))
    for key in KEYS:
        assert [n for other, n in handled if other == key] == [0, 1]


def test_groups_are_registered_on_a_new_shard_before_a_key_goes_over() -> None:
    """Or one that began with the latest would begin there behind messages that it has to get."""
    seen = []

    @consumer(TOPIC, group="late", start="latest")
    def late(delivery: Any) -> None:
        seen.append((delivery.key, delivery.payload))

    drain()
    ConsumerGroup.objects.using(A).filter(consumer_group="g").update(paused=True)
    alter("a", "b")
    publish_many(TOPIC, [NewMessage(1, key=key) for key in KEYS])
    drain()
    assert sorted(seen) == sorted((key, 1) for key in KEYS)
    assert ConsumerGroup.objects.using(B).get(consumer_group="g").paused


def test_a_group_walks_through_one_change_after_another(handled: list[tuple[str, int]]) -> None:
    changes: list[tuple[str, ...]] = [("a", "b"), ("b",), ("a", "b"), ("a",)]
    for number, shards in enumerate(changes):
        alter(*shards)
        publish_many(TOPIC, [NewMessage(number + 1, key=key) for key in KEYS])
    drain()
    for key in KEYS:
        assert [n for other, n in handled if other == key] == [0, 1, 2, 3, 4]


def test_an_id_is_unique_on_all_shards_of_its_key(settings: Any) -> None:
    key, other = MOVED[0], STAYS[0]
    first = publish(TOPIC, 1, key=key, id="x")
    publish(TOPIC, 1, key=key, id="later", delay=3600)
    publish(TOPIC, 1, key=key, unique_for=3600)
    alter("a", "b")
    again = [publish(TOPIC, 2, key=key, id=id).status for id in ("x", "later")]
    assert again == ["ignored", "ignored"]
    assert publish(TOPIC, 2, key=key, unique_for=3600).status == "ignored"
    many = publish_many(
        TOPIC, [NewMessage(3, key=key, id="x"), NewMessage(3, key=key, id="y"), NewMessage(3, key=other, id="x")]
    )
    assert many.statuses == ["ignored", "created", "created"]
    assert there(B) == [(key, 3)]
    status = get_status(TOPIC, id="x", key=key)
    assert status is not None
    assert (status.shard, status.offset) == ("a", first.offset)
    with pytest.raises(InvalidMessage, match="cancel"):
        publish(TOPIC, 4, key=key, id="later", delay=60, on_conflict="replace")
    assert cancel(TOPIC, id="later", key=key)
    assert publish(TOPIC, 4, key=key, id="later").status == "created"


def asked_for_its_shards(look: Callable[[], object]) -> int:
    with CaptureQueriesContext(connections[A]) as queries:
        look()
    texts = [re.sub('["`]', "", query["sql"]) for query in queries.captured_queries]
    return sum("shards FROM sqlqueue_topic" in text for text in texts)


def test_where_a_topic_is_is_read_only_for_what_is_not_found_where_it_was() -> None:
    for id, delay in (("in the log", None), ("scheduled", 3600)):
        publish(TOPIC, 1, key=MOVED[0], id=id, delay=delay)
        assert asked_for_its_shards(lambda id=id: get_status(TOPIC, id=id, key=MOVED[0])) == 0
    assert asked_for_its_shards(lambda: get_scheduled(TOPIC, id="scheduled", key=MOVED[0])) == 0
    assert asked_for_its_shards(lambda: cancel(TOPIC, id="scheduled", key=MOVED[0])) == 0
    assert asked_for_its_shards(lambda: cancel(TOPIC, id="scheduled", key=MOVED[0])) == 1
    with transaction.atomic(using=A):
        assert asked_for_its_shards(lambda: get_status(TOPIC, id="in the log", key=MOVED[0])) == 0


def test_a_process_that_knows_the_former_shards_only_finds_what_is_on_the_new_one() -> None:
    key = MOVED[0]
    publish(TOPIC, 1, key=key, id="again")
    Message.objects.using(A).filter(message_id="again").delete()  # it was collected, and its result is kept
    Result.objects.using(A).create(
        topic=TOPIC,
        partition_key=key,
        message_id="again",
        message_offset=1,
        consumer_group="g",
        outcome="acked",
        attempts=1,
        started_at=timezone.now(),
        finished_at=timezone.now(),
        expires_at=timezone.now() + timedelta(days=1),
    )
    before = dict(placement._known)
    alter("a", "b")
    publish(TOPIC, 2, key=key, id="again")
    publish(TOPIC, 2, key=key, id="later", delay=3600)
    for look in (
        lambda: getattr(get_status(TOPIC, id="again", key=key), "shard", None) == "b",
        lambda: getattr(get_status(TOPIC, id="later", key=key), "shard", None) == "b",
        lambda: get_scheduled(TOPIC, id="later", key=key) is not None,
        lambda: cancel(TOPIC, id="later", key=key),
    ):
        placement._known.update(before)
        assert placement.remembered(TOPIC, key, "") == [A]
        assert look()


def test_a_process_that_only_asks_looks_first_where_a_topic_is_after_it_had_to_ask() -> None:
    before = dict(placement._known)
    alter("b")
    key = KEYS[0]
    publish(TOPIC, 1, key=key, id="there")
    placement._known.update(before)
    begin(TOPIC, ["a", "b"])
    get_status(TOPIC, id="there", key=key)
    assert placement.remembered(TOPIC, key, "") == [A], "what is under way may be aborted"
    assert run("queuetopic", "alter", TOPIC, "--abort").code == 0
    assert get_status(TOPIC, id="there", key=key)
    with CaptureQueriesContext(connections[A]) as asked:
        assert get_status(TOPIC, id="there", key=key)
    assert not asked.captured_queries
    alter("a")  # and back
    publish(TOPIC, 1, key=key, id="here")
    assert getattr(get_status(TOPIC, id="here", key=key), "shard", None) == "a"


def test_a_shard_that_a_topic_has_left_and_that_does_not_answer_hides_nothing_of_the_new_one() -> None:
    alter("b")
    key = KEYS[0]
    placement.forget_placements()
    publish(TOPIC, 1, key=key)
    before = dict(placement._known)
    alter("a")
    publish(TOPIC, 1, key=key, id="in the log")
    publish(TOPIC, 1, key=key, id="later", delay=3600)
    looks: list[Callable[..., object]] = [
        partial(get_status, TOPIC, key=key),
        partial(get_scheduled, TOPIC, key=key),
        partial(cancel, TOPIC, key=key),
    ]
    with b_is_down():
        for look, id in zip(looks, ("in the log", "later", "later")):
            placement._known.update(before)
            assert placement.remembered(TOPIC, key, id)[0] == B
            assert look(id=id)
        for look in looks:  # it may be there
            placement._known.update(before)
            with pytest.raises(Error):
                look(id="unknown")


def test_a_shard_that_does_not_answer_is_no_reason_not_to_look_at_those_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys that went from one shard to another and back, which is down now."""
    monkeypatch.setattr(placement, "remembered", lambda topic, key, id: [B])
    monkeypatch.setattr(placement, "searched", lambda topic, key, id: [B, A])
    rows = Message.objects.filter(topic=TOPIC)
    with b_is_down():
        assert placement.first_found(lambda alias: rows.using(alias).exists(), TOPIC, KEYS[0], "")


def test_what_waits_for_its_time_follows_its_key(handled: list[tuple[str, int]]) -> None:
    for key in KEYS:
        publish(TOPIC, 1, key=key, delay=0.001)
    alter("a", "b")
    drain()
    assert sorted(there(B)) == [(key, 1) for key in MOVED]
    for key in KEYS:
        assert [n for other, n in handled if other == key] == [0, 1]


def test_what_is_relayed_follows_its_key_in_order() -> None:
    """A key goes from b to a: what was relayed to b before, and has not arrived, comes before what is relayed after."""
    alter("b")
    key = STAYS[0]
    with transaction.atomic(using=A):
        for number in (1, 2):
            publish(TOPIC, number, key=key, relay=True)
    alter("a", "b")
    publish(TOPIC, "learns", key=key)
    with transaction.atomic(using=A):
        publish(TOPIC, 3, key=key, relay=True)
    move_all()
    assert [number for other, number in there(A) if other == key] == [0, "learns", 1, 2, 3]
    assert there(B) == []


@pytest.mark.parametrize("learned", [True, False])
def test_in_a_transaction_a_key_that_has_moved_is_refused(learned: bool) -> None:
    alter("a", "b")
    if learned:
        publish(TOPIC, 1, key=MOVED[0])
    else:
        forget_layouts()
    with transaction.atomic(using=A):
        publish(TOPIC, 1, key=STAYS[0])
        with pytest.raises(InvalidMessage, match="relay=True"):
            publish(TOPIC, 2, key=MOVED[0])
        publish(TOPIC, 3, key=MOVED[0], relay=True)
    move_all()
    assert there(B)[-1] == (MOVED[0], 3)
    assert (MOVED[0], 2) not in there(B) + there(A)


def test_a_message_without_a_key_leaves_a_shard_that_its_topic_has_left() -> None:
    alter("b")
    assert {publish(TOPIC, n).shard for n in range(20)} == {"b"}
    alter("a", "b")
    assert {publish(TOPIC, n).shard for n in range(40)} == {"a", "b"}
    assert publish(TOPIC, 1, id="own").shard == publish(TOPIC, 1, id="own").shard


def test_a_rewind_on_the_former_shard_stops_the_group_on_the_new_one(handled: list[tuple[str, int]]) -> None:
    alter("a", "b")
    publish_many(TOPIC, [NewMessage(1, key=key) for key in KEYS])
    drain()
    handled.clear()
    publish_many(TOPIC, [NewMessage(2, key=key) for key in KEYS])
    move(A, "g", TOPIC, 0)
    assert set(PartitionLease.objects.using(B).filter(partition__gte=4).values_list("holder", flat=True)) == {WAITS}
    assert not EpochGrant.objects.using(A).exists()
    with queue_settings.at(B):
        assert not may_start(B, ConsumerGroup.objects.using(B).get(), range(4, 8))
    drain()
    for key in KEYS:
        expected = [0, 2] if key in MOVED else [0, 1, 2]
        assert [n for other, n in handled if other == key] == expected


def test_a_grant_that_was_asked_for_before_a_revocation_does_not_count() -> None:
    alter("a", "b")
    drain()
    row = EpochStart.objects.using(B).get()
    assert row.granted == "a"
    move(A, "g", TOPIC, 0)
    row = EpochStart.objects.using(B).get()
    assert (row.granted, row.revoked) == ("", 1)
    assert not retries.run(B, grants._store, B, "a", "g", TOPIC, 1, 0)
    assert EpochStart.objects.using(B).get().granted == ""
    drain()
    assert EpochStart.objects.using(B).get().granted == "a"


def test_a_revocation_that_nobody_ends_is_ended() -> None:
    alter("a", "b")
    drain()
    grants._revoke_elsewhere(A, "g", TOPIC)  # and dies
    assert not grants.seek_everywhere(B)
    grants.end_revocations(B, "a")
    assert grants.seek_everywhere(B)


def test_while_no_shards_were_changed_no_other_shard_is_asked() -> None:
    with CaptureQueriesContext(connections[A]) as asked:
        assert grants.seek(B, "a") == (0, 0)
        grants.end_revocations(B, "a")
    assert not asked.captured_queries


def test_what_asks_the_first_shard_holds_up_no_relay_to_another(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings, "queue_c", connections.settings[B])
    names = {"c": {"alias": "queue_c"}, "a": {"alias": A}, "b": {"alias": B}}
    settings.SQLQUEUE = settings.SQLQUEUE | {"SHARDS": names}
    started: list[BackgroundTask] = []
    monkeypatch.setattr(BackgroundTask, "start", lambda task: started.append(task))
    monkeypatch.setattr(BackgroundTask, "stop", lambda task, timeout=0: None)
    with queue_settings.at(B):
        subscriber = Subscriber(list(registry.consumers.values()))
        subscriber.start()
        subscriber.close()
    relays = [task for task in started if isinstance(task, RelayTask)]
    assert [(task._shard, task.also is not None) for task in relays] == [("c", False), ("a", True)]


def test_one_that_was_announced_can_be_aborted() -> None:
    begin(TOPIC, ["a", "b"])
    placed = newest_placement(TOPIC)
    assert placed is not None
    announce_at(B, TOPIC, placed.spread)
    announce_at(A, TOPIC, placed.spread)
    done = run("queuetopic", "alter", TOPIC, "--abort")
    assert done.code == 0, done
    assert {publish(TOPIC, 1, key=key).shard for key in KEYS} == {"a"}
    assert [under_way(alias) for alias in (A, B)] == [None, None]
    alter("a", "b")
    assert {publish(TOPIC, 2, key=key).shard for key in KEYS} == {"a", "b"}
    assert run("queuetopic", "alter", TOPIC, "--abort").code == 0
    assert "way back" not in run("queuetopic", "alter", TOPIC, "--abort").err


@pytest.mark.parametrize("steps", range(12))
def test_left_after_any_step_it_is_carried_on(steps: int) -> None:
    begin(TOPIC, ["a", "b"])
    left = Reshard(TOPIC)
    for _ in range(steps):
        left.step()
    publish_many(TOPIC, [NewMessage(1, key=key) for key in KEYS])
    assert run("queuetopic", "alter", TOPIC, "--shards", "a,b", "--no-input").code in (0, 1)
    publish_many(TOPIC, [NewMessage(2, key=key) for key in KEYS])
    placed = newest_placement(TOPIC)
    assert placed is not None
    assert (placed.shards, placed.spread.coming) == (("a", "b"), None)
    assert sorted(there(A) + there(B)) == sorted((key, n) for key in KEYS for n in (0, 1, 2))


def test_what_cannot_be_done_is_refused() -> None:
    for shards, text in (("a", "already"), ("c", "there is no shard"), ("", "name one shard")):
        done = run("queuetopic", "alter", TOPIC, "--shards", shards, "--no-input")
        assert done.code == 1
        assert text in done.err
    assert "change one thing" in run("queuetopic", "alter", TOPIC, "--shards", "a,b", "--partitions", "5").err
    assert "there is no topic" in run("queuetopic", "alter", "nothing", "--shards", "a,b").err
    done = run("queuetopic", "alter", TOPIC, "--shards", "a,b", "--dry-run")
    assert "Nothing was done." in done.out
    assert not Topic.objects.using(B).exists()
    begin(TOPIC, ["a", "b"])
    assert "being spread" in run("queuetopic", "alter", TOPIC, "--partitions", "5", "--no-input").err


def test_commands_show_all_shards_that_can_have_messages_of_it() -> None:
    alter("b")
    listed = run("queuegroup", "list", "--topic", TOPIC)
    assert "shard a" in listed.out
    assert "shard b" in listed.out


def test_what_was_relayed_to_the_former_shard_is_redirected_before_what_follows_it() -> None:
    alter("a", "b")
    publish(TOPIC, 1, key=MOVED[0])
    for number, shard in enumerate(("c", "b", "b")):
        key = KEYS[0] if number == 2 else MOVED[0]
        RelayedMessage.objects.create(
            shard=shard, topic=TOPIC, partition_key=key, message_id=str(number), payload="1", priority=0
        )
    rows = relay_moves._read(A, "b", 0, 1 << 40)
    assert [row.id for row in relay_redirect.next_of_keys(A, "b", rows)] == ["2"]
    RelayedMessage.objects.filter(shard="c").delete()
    assert [row.id for row in relay_redirect.next_of_keys(A, "b", rows)] == ["1", "2"]


def test_no_key_goes_over_before_every_shard_has_announced_it() -> None:
    begin(TOPIC, ["a", "b"])
    placed = newest_placement(TOPIC)
    assert placed is not None
    announce_at(A, TOPIC, placed.spread)
    step = Repartition(A)
    for _ in range(100):
        step.step()
    assert not stored_spread(A, TOPIC).closing
    assert {publish(TOPIC, 1, key=key).shard for key in KEYS} == {"a"}
    announce_at(B, TOPIC, placed.spread)
    other = Repartition(B)
    wait_until(lambda: (other.step(), step.step(), stored_spread(A, TOPIC).closing)[-1])
    alter("a", "b")
    assert {publish(TOPIC, 1, key=key).shard for key in KEYS} == {"a", "b"}


def test_topics_of_unfinished_batches_stay() -> None:
    with Batch() as members:
        members.publish(TOPIC, 1)
        refused = run(*ALTER)
    assert (refused.code, "1 batches that are not finished" in refused.err) == (1, True)
    drain()
    alter("a", "b")


@pytest.mark.parametrize("repeated", [False, True])
def test_members_of_a_batch_that_begins_meanwhile_are_counted_where_they_come(repeated: bool) -> None:
    """Its members are relayed to a shard that their keys leave; they come to the relaying one."""
    alter("b")
    begin(TOPIC, ["a"])
    with transaction.atomic(using=A), Batch() as members:
        members.publish_many(TOPIC, [NewMessage(1, key=key, id=f"id of {key}") for key in KEYS[:3]])
    if repeated:  # that one comes first, so the member is none
        publish(TOPIC, 1, key=KEYS[0], id=f"id of {KEYS[0]}")
    alter("a")
    move_all()
    members_there = [key for key, payload in there(A) if payload == 1]
    assert sorted(members_there) == KEYS[repeated:3]
    drain()
    status = get_batch(members.id)
    assert status is not None
    assert (status.state, status.total, status.done) == ("succeeded", 3 - repeated, 3 - repeated)


@pytest.mark.parametrize(("before", "after", "keys"), [("a", "a,b", KEYS), ("a,b", "b", STAYS)])
def test_a_batch_knows_of_the_shards_to_which_its_members_have_moved(before: str, after: str, keys: list[str]) -> None:
    """It does not end before those are settled, although its publisher learns of these shards last."""
    if before != "a":
        alter(*before.split(","))
        publish_many(TOPIC, [NewMessage(0, key=key) for key in KEYS])
    with Batch() as members:
        alter(*after.split(","))
        forget_layouts()
        members.publish_many(TOPIC, [NewMessage(1, key=key) for key in keys])
    named = BatchPart.objects.using(A).filter(batch=members.id).values_list("shard", flat=True)
    assert "b" in named
    drain()
    status = get_batch(members.id)
    assert status is not None
    assert (status.state, status.total, status.done) == ("succeeded", len(keys), len(keys))


def test_a_batch_knows_of_a_shard_that_its_publisher_learns_of_while_it_publishes() -> None:
    """As far as that knew when it began, all members would be on DATABASE's shard."""
    alter("a", "b")
    publish_many(TOPIC, [NewMessage(0, key=key) for key in KEYS])
    knew = dict(placement._known), dict(known_layouts._known)
    with Batch() as members:
        alter("b")
        for module, before in zip((placement, known_layouts), knew):  # what another process knows still
            module._known.clear()
            module._known.update(before)
        members.publish_many(TOPIC, [NewMessage(1, key=key) for key in STAYS])
    assert sorted(key for key, payload in there(B) if payload == 1) == STAYS
    named = BatchPart.objects.using(A).filter(batch=members.id).values_list("shard", flat=True)
    assert "b" in named
    drain()
    status = get_batch(members.id)
    assert status is not None
    assert (status.state, status.total, status.done) == ("succeeded", len(STAYS), len(STAYS))


@pytest.mark.parametrize("version", ["", "0.1.3", "0.2.0.dev0", "0.2.0.dev1"])
def test_consumers_of_a_former_version_are_waited_for(version: str) -> None:
    beats = SubscriberHeartbeat.objects.using(B)
    names = {"subscriber": "old", "host": "there", "consumer_group": "g", "topic": "other"}
    beats.create(**names, version=version, expires_at="2999-01-01 00:00Z")
    with pytest.raises(ConfigurationError, match="serve shard 'b': old on there"):
        begin(TOPIC, ["a", "b"])
    assert stored_spread(A, TOPIC).coming is None
    beats.update(version=__version__)
    begin(TOPIC, ["a", "b"])


def learn_as_before(alias: str) -> dict[str, int]:
    """Read, as a publisher of 0.2.0.dev1 does, into which epoch each topic's keys go."""
    former = "SELECT topic, phase, epoch FROM sqlqueue_layout WHERE generation <= %s ORDER BY topic, generation"
    placings: dict[str, int] = {}
    for topic, phase, epoch in execute(alias, former, (2**31 - 1,)).fetchall():
        placings[topic] = placings[topic] if phase == "turning" else epoch
    return placings


def test_what_a_publisher_of_a_former_version_learns_makes_it_fail() -> None:
    """Before the first key goes over, on every shard. (tests/upgrade has a real one.)"""
    begin(TOPIC, ["a", "b"])
    for _ in range(2):  # carried on
        Reshard(TOPIC).step()
    for alias in (A, B):
        with pytest.raises(KeyError, match="restart this process"):
            learn_as_before(alias)
    assert {publish(TOPIC, 1, key=key).shard for key in KEYS} <= {"a", "b"}


def test_a_publisher_of_a_former_version_goes_on_once_the_change_was_aborted() -> None:
    begin(TOPIC, ["a", "b"])
    for alias in (A, B):
        announce_at(alias, TOPIC, stored_spread(A, TOPIC))
    assert run("queuetopic", "alter", TOPIC, "--abort").code == 0
    assert [learn_as_before(alias)[TOPIC] for alias in (A, B)] == [0, 0]
    alter("a", "b")
    begin(TOPIC, ["a"])
    for alias in (A, B):
        announce_at(alias, TOPIC, stored_spread(A, TOPIC))
    assert run("queuetopic", "alter", TOPIC, "--abort").code == 0
    assert run("queuetopic", "alter", TOPIC, "--partitions", "3", "--no-input").code == 0
    for alias in (A, B):
        assert under_way(alias) is None
        with pytest.raises(KeyError, match="restart this process"):
            learn_as_before(alias)


def test_nothing_is_tried_for_ever() -> None:
    tried = []

    def fails(error: Exception) -> None:
        tried.append(error)
        raise error

    for error, operation in (
        (Moved(TOPIC, ""), until_placed),
        (Moved(TOPIC, ""), partial(retries.run, A)),
        (GrantsLeft(), partial(grants.without, A, "g", TOPIC)),
    ):
        with pytest.raises(type(error)):
            operation(wraps(fails)(partial(fails, error)))
        assert 3 <= len(tried) <= 20
        tried.clear()


def test_more_lists_than_a_row_holds_are_refused() -> None:
    Topic.objects.filter(name=TOPIC).update(shards=";".join(["a", "b"] * 499 + ["a"]))
    assert "too many lists" in run(*ALTER).err


class AnyWay(Publishers):
    """They publish at once, many at once, within a transaction on shard a that relays them, or with ids that are
    published twice."""

    def publish(self, thread: int) -> None:
        keys = [f"{thread}-{number}" for number in range(6)]
        number = self.count
        way = thread % 4
        if way == 0:
            for key in keys:
                publish(TOPIC, number, key=key)
        elif way == 1:
            publish_many(TOPIC, [NewMessage(number, key=key) for key in keys])
        elif way == 2:
            with transaction.atomic(using=A):
                publish_many(TOPIC, [NewMessage(number, key=key) for key in keys], relay=True)
        else:
            for key in keys * 2:
                publish(TOPIC, number, key=key, id=f"{key}:{number}")
        for key in keys:
            self.published.setdefault(key, []).append(number)


def move_all() -> None:
    for source, shard in ((A, "b"), (B, "a")):
        while relay_moves.move(source, shard).more:
            pass


def check_log(published: dict[str, list[int]]) -> None:
    """Each message is there once, on the shards of its key, and in order on each of them."""
    found: dict[str, list[int]] = {}
    rows = [
        row
        for alias in (A, B)
        for row in Message.objects.using(alias)
        .filter(topic=TOPIC)
        .order_by("offset")
        .values_list("partition_key", "payload")
    ]
    for key, number in rows:
        found.setdefault(key, []).append(number)
    for key, numbers in published.items():
        assert sorted(found[key]) == numbers, key


@GATED
@pytest.mark.long
def test_killed_at_any_moment_while_many_publish(
    manage: ManageCommands, settings: Any, handled: list[tuple[str, int]]
) -> None:
    """Nothing is lost, there twice or handled out of order, and the last one ends it; then back again."""
    env = {"SQLQUEUE": json.dumps(settings.SQLQUEUE)}
    dice = random.Random(11)
    with AnyWay(8, move_all, 0.3) as publishers:
        for to in ("a,b", "b", "b,a"):
            enough = publishers.count + 100
            wait_until(lambda enough=enough: publishers.count > enough)
            words = ("queuetopic", "alter", TOPIC, "--shards", to, "--no-input")
            for _ in range(3):
                command = manage(*words, env=env)
                command.wait_for_line("its keys are on|is on .* already")
                time.sleep(dice.random() * 0.7)
                command.kill()
            command = manage(*words, env=env)
            command.wait()
            placed = newest_placement(TOPIC)
            assert placed is not None
            assert (placed.shards, placed.spread.coming) == (tuple(sorted(to.split(","))), None), command.output
            enough = publishers.count + 50
            wait_until(lambda enough=enough: publishers.count > enough)
    check_log(publishers.published)
    drain(timeout=300)
    order: dict[str, list[int]] = {}
    for key, number in handled:
        order.setdefault(key, []).append(number)
    assert {key: order[key] for key in publishers.published} == publishers.published
