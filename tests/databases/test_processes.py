"""Consumer processes of several databases: one that is down holds up no other, and drains by itself once it is back."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import Error, connections, transaction

from sqlqueue import NewMessage, PartlyPublished, publish, publish_many, subscribe
from sqlqueue.core.keys import database_of
from sqlqueue.core.relay import relay_topic
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import Message, SubscriberHeartbeat
from tests.asking import ask, port_of
from tests.consumer_processes import QUICK, Consumers
from tests.databases.aliases import BOTH, A, B, further, spread, url_of
from tests.processes import ManageCommands, wait_until
from tests.servers.private import PrivateServer

pytestmark = pytest.mark.long("mariadb", "mysql", "postgresql")

KEYS = {
    database: [f"{database}{n}" for n in range(100) if database_of(f"{database}{n}", BOTH) == database][:20]
    for database in BOTH
}


@pytest.fixture
def consumer_options(settings: Any) -> dict[str, Any]:
    settings.SQLQUEUE = QUICK | spread("steady", "t")
    return settings.SQLQUEUE


@pytest.fixture
def second_database(transactional_db: None, tmp_path: Path) -> Iterator[None]:
    """Database b, beside the test database."""
    with further({B: url_of(B, tmp_path)}):
        yield


def published(consumers: Consumers, database: str, *names: str) -> None:
    """Publish messages of a database's keys; their ids are the names."""
    for number, name in enumerate(names):
        publish("steady", {"notes": str(consumers.notes)}, key=KEYS[database][number % 20], id=name)


def alive(alias: str) -> set[int]:
    """Return the process ids of the consumer processes of a database."""
    return set(SubscriberHeartbeat.objects.using(alias).alive().values_list("pid", flat=True))


def handled(consumers: Consumers, *names: str) -> bool:
    """Tell whether these were handled, each once."""
    ended = consumers.noted("end")
    return all(ended[name, 1] for name in names)


def names(prefix: str, count: int = 30) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def test_one_command_serves_all_databases(second_database: None, consumers: Consumers) -> None:
    running = consumers.start("steady", relay_topic(B))
    published(consumers, A, *names(A))
    published(consumers, B, *names(B))
    with transaction.atomic(using=A):
        publish("steady", {"notes": str(consumers.notes)}, key=KEYS[B][0], id="relayed", relay=True)
    wait_until(lambda: handled(consumers, *names(A), *names(B), "relayed"))
    assert [len(alive(alias)) for alias in BOTH] == [1, 1]
    running.terminate()
    assert running.wait() == 0
    assert not any(SubscriberHeartbeat.objects.using(alias).exists() for alias in (A, B))
    assert set(consumers.noted("begin").values()) == {1}


@pytest.mark.once
def test_counters_name_the_database(
    second_database: None, manage: ManageCommands, consumers: Consumers, consumer_options: dict[str, Any]
) -> None:
    env = {"SQLQUEUE": json.dumps(consumer_options)}
    published(consumers, A, *names(A, 3))
    published(consumers, B, *names(B, 2))
    running = manage("runconsumers", "--topic=steady", "--metrics-port=0", env=env)
    port = port_of(running, "metrics")

    def settled() -> list[str]:
        lines = ask(port, "/metrics").text.splitlines()
        return sorted(line for line in lines if line.startswith("sqlqueue_settled_total"))

    labels = 'database="{}",group="default",outcome="acked",topic="steady"'
    told = [f"sqlqueue_settled_total{{{labels.format(database)}}} {count}.0" for database, count in ((A, 3), (B, 2))]
    wait_until(lambda: settled() == told, message=lambda: running.output)
    script = (
        "from prometheus_client import generate_latest; from sqlqueue import NewMessage, publish, publish_many;"
        f"publish('t', 1, key={KEYS[B][0]!r});"
        f"publish_many('t', [NewMessage(n, key=key) for n, key in enumerate({KEYS[A][:2] + KEYS[B][:1]!r})]);"
        "print(generate_latest().decode())"
    )
    publisher = manage("shell", "-c", script, env=env)
    assert publisher.wait() == 0, publisher.output
    assert all(
        f'sqlqueue_published_total{{database="{database}",topic="t"}} 2.0' in publisher.output for database in BOTH
    )


def test_a_drain_ends_when_all_databases_are_drained(second_database: None, consumers: Consumers) -> None:
    published(consumers, A, *names(A))
    published(consumers, B, *names(B))
    assert consumers.start("steady", drain=True).wait() == 0
    assert handled(consumers, *names(A), *names(B))


def test_only_the_databases_that_are_asked_for(
    second_database: None, manage: ManageCommands, consumers: Consumers, consumer_options: dict[str, Any]
) -> None:
    published(consumers, A, *names(A))
    published(consumers, B, *names(B))
    env = {"SQLQUEUE": json.dumps(consumer_options)}
    words = ("runconsumers", "--topic=steady", "--drain")
    assert manage(*words, f"--database={B}", "--processes=0", env=env).wait() == 0
    assert not consumers.noted("end").keys() & {(name, 1) for name in names(A)}
    assert handled(consumers, *names(B))
    for refused, why in (
        (["--processes=0"], "say which with --database"),
        (["--database=c"], "Did you mean|Known are"),
    ):
        command = manage(*words, *refused, env=env)
        assert command.wait() == 1
        command.wait_for_line(why)


def test_a_killed_process_of_one_database_is_replaced(second_database: None, consumers: Consumers) -> None:
    consumers.start("steady", relay_topic(B))
    published(consumers, A, "a0")
    published(consumers, B, "b0")
    wait_until(lambda: handled(consumers, "a0", "b0"))
    (of_b,) = alive(B)
    os.kill(of_b, 9)
    published(consumers, B, "b1")
    wait_until(lambda: handled(consumers, "b1"))


@pytest.mark.database("mariadb", "postgresql")
def test_a_database_that_is_down_holds_up_no_other_and_drains_once_it_is_back(
    second_server: PrivateServer, consumers: Consumers
) -> None:
    published(consumers, A, "a-before")
    published(consumers, B, *names("b-before"))
    second_server.kill()
    connections[B].close()
    forget_topics()  # as in a process that starts now
    running = consumers.start("steady", relay_topic(B))
    running.wait_for_line(f"database '{B}' does not answer, and is served once it does")

    published(consumers, A, *names("a-down"))
    with pytest.raises(Error):
        published(consumers, B, "b-down")
    messages = [
        NewMessage({"notes": str(consumers.notes)}, key=KEYS[database][0], id=f"{database}-many") for database in BOTH
    ]
    with pytest.raises(PartlyPublished) as partly:
        publish_many("steady", messages)
    assert (partly.value.unpublished, list(partly.value.failed)) == ([1], [B])
    with transaction.atomic(using=A):
        for name in names("relayed", 5):
            publish("steady", {"notes": str(consumers.notes)}, key=KEYS[B][0], id=name, relay=True)
    wait_until(lambda: handled(consumers, "a-before", "a-many", *names("a-down")))

    second_server.start()
    connections[B].close()
    wait_until(lambda: handled(consumers, *names("b-before"), *names("relayed", 5)))
    published(consumers, B, *names("b-after"))
    wait_until(lambda: handled(consumers, *names("b-after")))

    second_server.kill()  # under its consumers
    published(consumers, A, *names("a-again"))
    wait_until(lambda: handled(consumers, *names("a-again")))
    second_server.start()
    connections[B].close()
    published(consumers, B, *names("b-again"))
    wait_until(lambda: handled(consumers, *names("b-again")))
    running.terminate()
    assert running.wait() == 0


@pytest.mark.database("mariadb")
def test_a_pull_loop_goes_on_while_a_database_is_down(second_server: PrivateServer, settings: Any) -> None:
    settings.SQLQUEUE = QUICK | spread("steady", "t")
    for database in BOTH:
        publish("t", "before", key=KEYS[database][0])
    with subscribe("t", timeout=120) as deliveries:
        taken = iter(deliveries)

        def take() -> tuple[str, Any]:
            delivery = next(taken)
            delivery.ack()
            return delivery.database, delivery.payload

        assert {take(), take()} == {(A, "before"), (B, "before")}
        second_server.kill()
        connections[B].close()
        publish("t", "while b is down", key=KEYS[A][0])
        assert take() == (A, "while b is down")
        second_server.start()
        publish("t", "b is back", key=KEYS[B][0])
        while (last := take()) == (B, "before"):  # again, if its ack was not stored
            pass
        assert last == (B, "b is back")


@pytest.mark.long
@pytest.mark.database("mariadb", "postgresql")
@pytest.mark.parametrize("home", [A, B])
def test_consumers_start_beside_a_database_that_hangs(
    second_server: PrivateServer, consumers: Consumers, consumer_options: dict[str, Any], settings: Any, home: str
) -> None:
    settings.SQLQUEUE = consumer_options | {"DATABASE": home}
    consumers._options = settings.SQLQUEUE
    published(consumers, A, "a-before")
    published(consumers, B, "b-before")
    connections[B].close()
    with second_server.frozen():
        consumers.start("steady", relay_topic(B))
        wait_until(lambda: handled(consumers, "a-before"))
    wait_until(lambda: handled(consumers, "b-before"))


@pytest.mark.long
def test_kills_leave_each_relayed_message_once(second_database: None, consumers: Consumers) -> None:
    every: list[str] = []
    for kill in range(6):
        running = consumers.start("steady", relay_topic(B))
        running.wait_for_line(f"event=process_started .*database={B}")
        for number in range(60):
            with transaction.atomic(using=A):
                for part in range(5):
                    every.append(f"{kill}-{number}-{part}")
                    key = KEYS[B][number % 20]
                    publish("steady", {"notes": str(consumers.notes)}, key=key, id=every[-1], relay=True)
        wait_until(lambda least=40 + kill * 300: Message.objects.using(B).filter(topic="steady").count() > least)
        running.kill_all()
    consumers.start("steady", relay_topic(B))
    rows = Message.objects.using(B).filter(topic="steady")
    wait_until(lambda: rows.count() >= len(every))
    assert Counter(rows.values_list("message_id", flat=True)) == dict.fromkeys(every, 1)
    for key in KEYS[B]:
        arrived = rows.filter(partition_key=key).order_by("offset")
        ids = list(arrived.values_list("message_id", flat=True))
        assert ids == [id for id in every if id in set(ids)]


@pytest.mark.long
@pytest.mark.database("mariadb", "postgresql")
def test_the_database_that_database_names_may_be_down_too(
    second_server: PrivateServer, consumers: Consumers, consumer_options: dict[str, Any], settings: Any
) -> None:
    settings.SQLQUEUE = consumer_options | {"DATABASE": B}
    consumers._options = settings.SQLQUEUE
    published(consumers, A, "a-before")
    published(consumers, B, "b-before")
    second_server.kill()
    connections[B].close()
    forget_topics()
    consumers.start("steady", relay_topic(B))
    published(consumers, A, *names("a-down"))
    wait_until(lambda: handled(consumers, "a-before", *names("a-down")))
    second_server.start()
    wait_until(lambda: handled(consumers, "b-before"))


def test_without_any_database_nothing_starts(
    second_database: None, manage: ManageCommands, consumer_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "sqlite:////nowhere/there.sqlite3"
    monkeypatch.setenv("FURTHER_URLS", f"{B}={gone}")
    command = manage("runconsumers", f"--database={B}", env={"SQLQUEUE": json.dumps(consumer_options)})
    assert command.wait() == 1
    command.wait_for_line("does not answer")
