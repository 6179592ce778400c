"""What is read is dispatched in order, however late it was committed, and never without a bound."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from django.db import connection, transaction

from sqlqueue import publish, publish_many
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine import reader as reader_module
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import ConsumerOptions, PartitionRef
from sqlqueue.core.partition.window import Found
from tests.factories import MessageValueFactory


class OpenPublish(threading.Thread):
    """A transaction that has published, to topic t unless `write` says what else, and stays open until `commit`."""

    def __init__(self, payload: object, key: str, write: Callable[[], object] | None = None):
        super().__init__(daemon=True)
        self._write = write or (lambda: publish("t", payload, key=key))
        self._published, self._go_on = threading.Event(), threading.Event()
        self.start()
        assert self._published.wait(30)

    def run(self) -> None:
        try:
            with transaction.atomic():
                self._write()
                self._published.set()
                self._go_on.wait(120)
        finally:
            connection.close()

    def commit(self) -> None:
        """Commit, and return when that is done."""
        self._go_on.set()
        self.join(30)


@contextmanager
def subscriber(handler, **options: object) -> Iterator[Subscriber]:
    """A subscriber of topic t whose iterations the test runs; handlers run inside them."""
    made = build("t", {"group": "g", **options})
    hosted = Subscriber([replace(made, handler=handler)], pool=InlinePool, background_tasks=False)
    hosted.start()
    try:
        yield hosted
    finally:
        hosted.close()


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_what_committed_before_a_message_of_its_key_was_published_comes_first(
    transactional_db: None, settings: object
) -> None:
    settings.SQLQUEUE = {"TOPICS": {"t": {"partitions": 1}}, "WAKE": False, "LEASE_DURATION": 3600}
    publish("t", 0)
    seen: list[object] = []
    with subscriber(lambda delivery: seen.append(delivery.payload)) as hosted:
        holder = OpenPublish("held", key="h")  # holds the horizon back all the time
        slow = OpenPublish("first", key="k")
        publish("t", "other", key="x")
        while "other" not in seen:
            hosted.run_once()
        slow.commit()
        publish("t", "second", key="k")
        while len(seen) < 4:
            hosted.run_once()
        holder.commit()
    assert seen == [0, "other", "first", "second"]


def test_reading_again_for_late_commits_keeps_the_bound_on_what_is_in_memory() -> None:
    stream = AssignedPartition(
        PartitionRef("g", "t", 0), ConsumerOptions(batch_size=10), id=1, token=1, position=0, watermark=0, claimed=0
    )
    log = {offset: MessageValueFactory(offset=offset) for offset in range(1_000, 2_000)}
    horizon = 1  # a transaction holds it back

    def read() -> None:
        if asked := stream.missing(horizon):
            stream.add_missing(asked, {offset: (None, log[offset]) for offset, _ in asked}, 0.0)
        elif (wanted := stream.next_read(horizon)) is not None:
            seen = [o for o in sorted(log) if wanted.since < o <= wanted.start][: wanted.looks]
            found = [m for o, m in sorted(log.items()) if o > wanted.start][: wanted.limit]
            stream.take_in(wanted, Found(seen, found), horizon)

    for number in range(999, 1, -1):
        stream.window.alarm()
        read()
        log[number] = MessageValueFactory(offset=number)  # late, and in the wrong order
    assert stream.queues.ready <= 3 * stream.options.batch_size
    horizon = 2_000  # it has ended: what was read becomes final, room or not
    for _ in range(4):
        read()
    assert stream.window.final > 1
    assert stream.queues.ready <= 5 * stream.options.batch_size


def test_a_read_asks_for_few_messages_until_it_is_known_how_heavy_they_are(
    transactional_db: None, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = {
        "TOPICS": {"t": {"partitions": 1}},
        "WAKE": False,
        "LEASE_DURATION": 3600,
        "PREFETCH_BYTES": 80_000,
    }
    limits: list[tuple[int, int]] = []
    fetch = reader_module.fetch

    def told(alias, reads, server):
        found = fetch(alias, reads, server)
        limits.extend((read.limit, len(each.messages)) for (_, read), each in zip(reads, found) if each.messages)
        return found

    monkeypatch.setattr(reader_module, "fetch", told)
    publish_many("t", ["x" * 10_000] * 40 + ["x"] * 300)
    seen: list[object] = []
    with subscriber(lambda delivery: seen.append(delivery.payload)) as hosted:
        while len(seen) < 340:
            hosted.run_once()
    assert limits[0] == (reader_module.FIRST_READ, 3)
    assert limits[1][0] <= 3
    assert max(limit for limit, _ in limits) > reader_module.FIRST_READ
