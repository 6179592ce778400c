"""`queuetopic alter NAME --partitions N` of a topic on several databases: each is altered, also by a second run."""

import json
import random
import time
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import transaction

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.core.keys import database_of
from sqlqueue.core.relay import relay_topic
from sqlqueue.database.log import Log
from sqlqueue.log.layout_changes import under_way
from sqlqueue.log.layouts import epochs
from sqlqueue.log.relay import arrive
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import Message, Topic
from sqlqueue.operations.repartition import Repartition, begin
from tests.databases.aliases import BOTH, A, B, spread
from tests.databases.publishers import Publishers
from tests.databases.test_relay import on_its_way
from tests.management.running import run
from tests.processes import ManageCommands, wait_until

pytestmark = pytest.mark.usefixtures("databases")

GATED = pytest.mark.database("mariadb", "mysql", "postgresql")
SLOTTED = pytest.mark.database("mariadb", "mysql")  # the others cannot go back
TOPIC = "orders"
ALTER = ("queuetopic", "alter", TOPIC, "--partitions", "6", "--no-input")
KEYS = {database_of(key, BOTH): key for key in ("k0", "k1", "k2", "k3", "k4", "k5")}


@pytest.fixture(autouse=True)
def topic(databases: dict[str, Any], settings: Any) -> None:
    settings.SQLQUEUE = databases | spread(TOPIC, partitions=4)
    for key in KEYS.values():
        publish(TOPIC, "before", key=key)


def blocks(alias: str) -> list[tuple[int, bool]]:
    """Return the partitions of each epoch on a database, and whether it has ended."""
    return [(epoch.partitions, epoch.end is not None) for epoch in epochs(Log.of(alias), TOPIC)]


def check_altered() -> None:
    for database, alias in zip(BOTH, BOTH):
        assert blocks(alias) == [(4, True), (6, False)]
        publish(TOPIC, "after", key=KEYS[database])
        assert Message.objects.using(alias).latest("offset").partition >= 4


def test_every_database_is_altered_and_keys_stay_on_theirs() -> None:
    with transaction.atomic(using=A):
        publish(TOPIC, "relayed", key=KEYS[B], relay=True)
    done = run(*ALTER)
    assert done.code == 0, done
    assert [line for line in done.out.splitlines() if line.startswith("database ")] == [
        f"database {alias}" for alias in BOTH
    ]
    move_all()
    arrived = Message.objects.using(B).filter(topic=TOPIC).latest("offset")
    assert (arrived.payload, arrived.partition >= 4) == ("relayed", True)
    check_altered()


@pytest.mark.parametrize("one", [A, B])
def test_what_was_done_on_one_database_holds_up_no_other(one: str) -> None:
    begin(Log.of(one), TOPIC, 6)
    for _ in Repartition(Log.of(one)).run(0):
        pass
    done = run(*ALTER)
    assert done.code == 0, done
    assert f"Topic {TOPIC!r} has 6 partitions already" in done.out
    check_altered()
    assert run(*ALTER).code == 0
    refused = run(*ALTER, "--database", B)
    assert refused.code == 1
    assert "has 6 partitions already" in refused.err


@pytest.fixture
def nothing_on_b() -> None:
    """Let no message of the topic have come to database b yet."""
    Message.objects.using(B).filter(topic=TOPIC).delete()
    Topic.objects.using(B).filter(name=TOPIC).delete()
    forget_topics()


@pytest.mark.usefixtures("nothing_on_b")
def test_a_database_that_has_no_message_of_the_topic_yet_is_altered_too() -> None:
    assert "Nothing of topic 'orders' has come to this database yet" in run(*ALTER, "--dry-run").out
    assert not Topic.objects.using(B).exists()
    done = run(*ALTER)
    assert done.code == 0, done
    check_altered()


@pytest.mark.usefixtures("nothing_on_b")
def test_what_is_paused_is_paused_where_its_first_message_is_still_to_come() -> None:
    assert run("queuepause", TOPIC).code == 0
    assert [Topic.objects.using(alias).get(name=TOPIC).paused for alias in (A, B)] == [True, True]


@pytest.mark.usefixtures("nothing_on_b")
def test_lists_go_over_a_database_that_has_nothing_of_the_topic() -> None:
    listed = run("queuedlq", "list", "--topic", TOPIC)
    assert listed.code == 0, listed
    assert f"database {B}" in listed.out


@SLOTTED
def test_an_abort_goes_over_the_databases_that_have_something_to_abort() -> None:
    begin(Log.of(B), TOPIC, 6)
    done = run("queuetopic", "alter", TOPIC, "--abort")
    assert done.code == 0, done
    assert f"database {B}\nTopic {TOPIC!r} stays" in done.out.replace(
        f"database {A}\nNo change of topic {TOPIC!r} is under way. Nothing was done.\n", ""
    )
    assert (under_way(Log.of(B)), blocks(A), blocks(B)) == (None, [(4, False)], [(4, False)])


class BothDatabases(Publishers):
    """For keys on both databases, they publish at once, or relayed by database a."""

    def publish(self, thread: int) -> None:
        relayed = thread % 2 == 0
        keys = [f"{thread}-{number}" for number in range(6)]
        number = self.count
        with transaction.atomic(using=A) if relayed else nullcontext():
            publish_many(TOPIC, [NewMessage(number, key=key) for key in keys], relay=relayed)
        for key in keys:
            self.published.setdefault(key, []).append(number)


def move_all() -> None:
    rows = Message.objects.using(A).filter(topic=relay_topic(B)).order_by("offset")
    arrive(Log.of(A), Log.of(B), [on_its_way(one) for one in rows])


@GATED
@pytest.mark.long
def test_killed_at_any_moment_while_many_publish_to_both_databases(manage: ManageCommands, settings: Any) -> None:
    """Nothing is lost, there twice or out of order, and the last one ends it on both databases."""
    env = {"SQLQUEUE": json.dumps(settings.SQLQUEUE)}
    dice = random.Random(11)
    with BothDatabases(4, move_all, 0.005) as publishers:
        wait_until(lambda: publishers.count > 50)
        for _ in range(5):
            command = manage(*ALTER, env=env)
            command.wait_for_line("partitions become|has 6 partitions already")
            time.sleep(dice.random() * 0.7)
            command.kill()
        command = manage(*ALTER, env=env)
        assert command.wait() == 0, command.output
        enough = publishers.count + 50
        wait_until(lambda: publishers.count > enough)
    for database, alias in zip(BOTH, BOTH):
        assert (under_way(Log.of(alias)), blocks(alias)) == (None, [(4, True), (6, False)])
        there: dict[str, list[int]] = {}
        last: dict[str, int] = {}
        rows = Message.objects.using(alias).filter(topic=TOPIC).order_by("offset")
        for key, number, partition in rows.values_list("partition_key", "payload", "partition"):
            there.setdefault(key, []).append(number)
            epoch = int(partition >= 4)
            assert last.get(key, 0) <= epoch, f"{key} goes back"
            last[key] = epoch
        wanted = {key: some for key, some in publishers.published.items() if database_of(key, BOTH) == database}
        assert {key: some for key, some in there.items() if key in publishers.published} == wanted
