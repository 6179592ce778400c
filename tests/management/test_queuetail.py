"""`manage.py queuetail`: everything that is committed, in order, and nothing else."""

import json
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from django.db import connections, transaction
from django.utils import timezone

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup, DeliveryState, Message, Offset, PartitionLease, Topic
from sqlqueue.stats import counting, search
from sqlqueue.stats.search import Tail
from tests.consuming import Consuming
from tests.logs import LOG
from tests.management.running import Said, run
from tests.processes import ROOT, ManageCommands, environment, wait_until

ALL = ("--from", "earliest", "--no-follow")


def payloads(said: Said) -> list[object]:
    return [json.loads(line)["payload"] for line in said.out.splitlines()]


@pytest.fixture
def thirty(consuming: Consuming) -> list[int]:
    """The offsets of thirty messages of three keys."""
    publish_many("orders", [NewMessage({"n": number}, key=f"k{number % 3}", id=f"id-{number}") for number in range(30)])
    return list(Message.objects.order_by("offset").values_list("offset", flat=True))


def test_a_line_tells_place_key_id_and_payload(thirty: list[int]) -> None:
    said = run("queuetail", "orders", *ALL, "--limit", 1)
    assert said.code == 0
    message = Message.objects.get(offset=thirty[0])
    assert said.out.startswith(f"{thirty[0]} {message.created_at:%Y-%m-%dT%H:%M:%S.%f}Z [{message.partition}] ")
    assert said.out.endswith('key=k0 id=id-0 {"n":0}\n')


def test_where_to_begin(thirty: list[int]) -> None:
    def numbers(*words: object) -> list[object]:
        return [payload["n"] for payload in payloads(run("queuetail", "orders", "--json", "--no-follow", *words))]  # type: ignore[index]

    assert numbers("--from", "earliest") == list(range(30))
    assert numbers("--from", thirty[20]) == list(range(20, 30))
    assert numbers() == []
    old = timezone.now() - timedelta(hours=3)
    Message.objects.filter(offset__lt=thirty[12]).update(created_at=old)
    assert numbers("--from", "2h") == list(range(12, 30))
    assert numbers("--from", (old + timedelta(hours=1)).isoformat()) == list(range(12, 30))
    assert numbers("--from", (old - timedelta(hours=1)).isoformat()) == list(range(30))


def test_filters(thirty: list[int]) -> None:
    assert [p["n"] for p in payloads(run("queuetail", "orders", *ALL, "--json", "--key", "k1"))] == [*range(1, 30, 3)]  # type: ignore[index]
    partition = Message.objects.get(offset=thirty[0]).partition
    said = run("queuetail", "orders", *ALL, "--json", "--partition", partition)
    assert {json.loads(line)["partition"] for line in said.out.splitlines()} == {partition}
    assert said.out.count("\n") == Message.objects.filter(partition=partition).count()
    register(LOG, "mail", "orders")
    publish("orders", "for billing alone", group="billing")
    publish("orders", "for mail alone", group="mail")
    assert payloads(run("queuetail", "orders", *ALL, "--json", "--group", "mail"))[-1] == "for mail alone"
    assert len(payloads(run("queuetail", "orders", *ALL, "--json", "--group", "mail"))) == 31


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        (["payload.n__gte=28"], [28, 29, 100, 101]),
        (["payload.n__lt=9", "key=k1"], [1, 4, 7]),
        (["payload.n=[3, 5]"], [3, 5]),
        (['payload.n=["3", 5]'], [5]),
        (["payload.n=nan"], []),
        (["id__startswith=id-2", "id__contains=9"], [29]),
        (['id=["id-2", "id-3"]'], [2, 3]),
        (["headers.country=DE"], [100]),
        (['headers.country=["AT", "FR"]'], [101]),
        (["headers.country__exists=true"], [100, 101]),
    ],
)
def test_where(thirty: list[int], conditions: list[str], numbers: list[int]) -> None:
    publish("orders", {"n": 100}, headers={"country": "DE"})
    publish("orders", {"n": 101}, headers={"country": "AT"})
    publish("orders", "text")
    publish("orders", b"bytes")
    words = [word for condition in conditions for word in ("--where", condition)]
    assert [p["n"] for p in payloads(run("queuetail", "orders", *ALL, "--json", *words))] == numbers  # type: ignore[index]


def test_it_reads_on_where_a_read_is_full(thirty: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "TAIL_AT_ONCE", 7)
    monkeypatch.setattr(counting, "AT_ONCE", 1)
    tail = Tail(LOG, Topic.objects.get(name="orders"), 0)
    reads = [[message.offset for message in tail.read()] for _ in range(6)]
    assert [len(read) for read in reads] == [7, 7, 7, 7, 2, 0]
    assert [offset for read in reads for offset in read] == thirty


def test_it_leaves_no_trace(thirty: list[int]) -> None:
    run("queuetail", "orders", *ALL)
    for model in (ConsumerGroup, Offset, DeliveryState, PartitionLease):
        assert not model.objects.exists()
    assert run("queuetail", "nothing").code == 1
    assert not Topic.objects.filter(name="nothing").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ordres",), "there is no topic 'ordres'. Did you mean 'orders'?"),
        (("orders", "--partition", "4"), "has the partitions 0 to 3, not 4"),
        (("orders", "--group", "mial"), "group 'mial' is not registered in topic 'orders'"),
        (("orders", "--from", "yesterday"), "'yesterday' names no offset"),
        (("orders", "--from", "2026-13-01T00:00"), "names no offset"),
        (("orders", "--limit", "0"), "argument --limit: '0' is not a whole number from 1"),
        (("orders", "--where", "headers.country"), "write NAME=VALUE, such as headers.country=DE"),
        (("orders", "--where", "header.country=DE"), "no field 'header'. Did you mean 'headers'?"),
        (("orders", "--where", "payload.n=[]"), "an empty list matches nothing"),
        (("orders", "--where", "key=a", "--where", "key=b"), "'key' is named twice; for one of several values"),
    ],
)
def test_what_cannot_be_is_refused(thirty: list[int], words: tuple[str, ...], said: str) -> None:
    refused = run("queuetail", *words)
    assert refused.code == 1
    assert said in refused.err


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_what_commits_late_is_neither_passed_over_nor_shown_before_its_time(consuming: Consuming) -> None:
    publish("orders", "first")
    tail = Tail(LOG, Topic.objects.get(name="orders"), 0)
    inserted, commit = threading.Event(), threading.Event()

    def publish_slowly() -> None:
        try:
            with transaction.atomic():
                publish("orders", "slow")
                inserted.set()
                commit.wait(60)
        finally:
            connections.close_all()

    slow = threading.Thread(target=publish_slowly)
    slow.start()
    try:
        assert inserted.wait(30)
        publish("orders", "quick")
        seen = [message.payload for _ in range(5) for message in tail.read()]
        assert "slow" not in seen
        assert "quick" not in seen
        assert tail.held_back
    finally:
        commit.set()
        slow.join(30)

    def read_on() -> bool:
        seen.extend(message.payload for message in tail.read())
        return "quick" in seen

    wait_until(read_on, 30)
    assert seen == ["first", "slow", "quick"]
    assert not tail.held_back


def test_following_until_it_is_interrupted(manage: ManageCommands) -> None:
    publish("orders", "before")
    command = manage("queuetail", "orders", "--from", "earliest", "--json")
    command.wait_for_line('"before"')
    publish("orders", "after")
    command.wait_for_line('"after"')
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output
    assert len(command.output.splitlines()) == 2


def test_a_reader_who_has_had_enough_ends_it(transactional_db: None) -> None:
    """As in `queuetail | head -1`: no traceback, no failure, and the command does not wait for the next message."""
    publish("orders", "one")
    command = [sys.executable, str(ROOT / "manage.py"), "queuetail", "orders", "--from", "earliest"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert b'"one"' in process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_pipe_that_closes_while_it_prints(transactional_db: None) -> None:
    publish_many("orders", ["x" * 200] * 3_000)
    text = f"{sys.executable} manage.py queuetail orders --from earliest --no-follow | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", text],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1
