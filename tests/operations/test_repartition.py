"""The change of a topic's partitions: publishers go over to a new epoch while they publish."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import defaultdict
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.utils import DatabaseError
from django.test.utils import CaptureQueriesContext

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.database import insert_sql, turning
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.log import forget_layouts
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.layout_changes import under_way
from sqlqueue.log.layouts import epochs
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import EpochSlot, Layout, Message, Topic
from sqlqueue.operations.drop import drop
from sqlqueue.operations.repartition import STUBBORN, Repartition, abort, begin
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "orders"
SLOTTED = pytest.mark.database("mariadb", "mysql")
GATED = pytest.mark.database("mariadb", "mysql", "postgresql")


@pytest.fixture(autouse=True)
def topic() -> Topic:
    forget_layouts()
    return Topic.objects.create(name=TOPIC, partitions=4)


def alter(partitions: int) -> None:
    begin(LOG, TOPIC, partitions)
    finish()


def finish(timeout: float = 60.0) -> None:
    until = time.monotonic() + timeout
    for progress in Repartition(LOG).run(0.01):
        assert time.monotonic() < until, progress


def partition_of(offset: int | None) -> int:
    return Message.objects.get(offset=offset).partition


def crc(text: str) -> int:
    return zlib.crc32(text.encode())


def test_every_epoch_has_partition_numbers_of_its_own() -> None:
    before = publish(TOPIC, 1, key="a").offset
    alter(6)
    during = publish(TOPIC, 2, key="a").offset
    alter(2)
    after = publish(TOPIC, 3, key="a").offset
    assert partition_of(before) == crc("a") % 4
    assert partition_of(during) == 4 + crc("a") % 6
    assert partition_of(after) == 10 + crc("a") % 2
    assert [(e.number, e.base, e.partitions, e.end) for e in epochs(LOG, TOPIC)] == [
        (0, 0, 4, before),
        (1, 4, 6, during),
        (2, 10, 2, None),
    ]
    assert under_way(LOG) is None
    assert not EpochSlot.objects.exists()


def test_whatever_enters_the_log_goes_to_the_open_epoch() -> None:
    alter(3)
    forget_layouts()  # as in a process that starts now
    publish_many(TOPIC, [NewMessage(n, key=f"k{n}") for n in range(20)])
    publish_many(TOPIC, [NewMessage(n, id=f"i{n}") for n in range(20)])
    publish(TOPIC, 1)
    publish(TOPIC, 1, id="one")
    publish("other", 1, key="a")
    for message in Message.objects.filter(topic=TOPIC):
        assert message.partition == 4 + crc(message.partition_key or message.message_id) % 3
    assert Message.objects.filter(topic=TOPIC).count() == 42
    assert Message.objects.get(topic="other").partition == crc("a") % 32


def test_an_id_stays_unique_over_epochs() -> None:
    first = publish(TOPIC, 1, id="once", key="a")
    alter(8)
    again = publish(TOPIC, 1, id="once", key="a")
    many = publish_many(TOPIC, [NewMessage(n, id="once", key="a") for n in range(2)])
    assert (again.offset, again.status) == (first.offset, "ignored")
    assert many.ignored == 2
    assert Message.objects.count() == 1


def test_one_change_at_a_time() -> None:
    Topic.objects.create(name="second", partitions=1)
    with pytest.raises(ConfigurationError, match="4 partitions already"):
        begin(LOG, TOPIC, 4)
    with pytest.raises(ConfigurationError, match="dead letters"):
        begin(LOG, f"{TOPIC}_dlq", 5)
    with pytest.raises(ConfigurationError, match="no topic"):
        begin(LOG, "none", 5)
    if begin(LOG, TOPIC, 5) is not None:
        with pytest.raises(ConfigurationError, match="one topic's at a time"):
            begin(LOG, "second", 2)
    finish()
    begin(LOG, "second", 2)
    finish()
    assert [one.partitions for one in epochs(LOG, "second")] == [1, 2]


@GATED
def test_a_transaction_that_was_open_before_may_publish_on() -> None:
    """Its earlier messages are in the former epoch, its later ones obey the new layout, in order; and no end is read
    before it has ended."""
    with OpenTransaction() as open_one:
        first = open_one.do(lambda: publish(TOPIC, 1, key="a").offset)
        change = begin(LOG, TOPIC, 6)
        assert change is not None
        driver = Repartition(LOG)
        for _ in range(60):
            assert driver.step() is not None
        assert not Layout.objects.filter(end__isnull=False).exists()
        other = publish(TOPIC, 2, key="b").offset  # is held up by nothing
        second = open_one.do(lambda: publish(TOPIC, 3, key="a").offset)
        open_one.commit()
    finish()
    third = publish(TOPIC, 4, key="a").offset
    partitions = [partition_of(offset) for offset in (first, second, third)]
    assert partitions[0] == crc("a") % 4
    assert partitions == sorted(partitions)
    assert partitions[2] == 4 + crc("a") % 6
    end = Layout.objects.get(end__isnull=False).end
    assert end >= max(Message.objects.filter(partition__lt=4).values_list("offset", flat=True))
    assert partition_of(other) in (crc("b") % 4, 4 + crc("b") % 6)


@GATED
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_an_old_snapshot_does_not_hide_the_change(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation, and what it means, are those of now."""
    publish(TOPIC, 0, key="a")
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", isolation(level))
    with OpenTransaction() as old:
        assert old.do(lambda: Message.objects.count()) == 1
        alter(6)
        assert old.do(lambda: Layout.objects.exists()) == (level == "read committed")
        offset = old.do(lambda: publish(TOPIC, 1, key="a").offset)
        old.do(lambda: publish_many(TOPIC, [1, 2, 3]))
        old.commit()
    assert partition_of(offset) == 4 + crc("a") % 6
    assert Message.objects.filter(partition__gte=4).count() == 4


def isolation(level: str) -> object:
    if connection.vendor == "mysql":
        return level
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    return IsolationLevel[level.upper().replace(" ", "_")]


@SLOTTED
def test_it_can_be_aborted_until_the_first_keys_have_gone_over() -> None:
    begin(LOG, TOPIC, 6)
    Repartition(LOG).step()
    publish(TOPIC, 1, key="a")
    abort(LOG, TOPIC)
    publish(TOPIC, 2, key="a")
    finish()
    assert partition_of(publish(TOPIC, 3, key="a").offset) == crc("a") % 4
    assert [(one.number, one.end) for one in epochs(LOG, TOPIC)] == [(0, None)]
    assert not EpochSlot.objects.exists()
    with pytest.raises(ConfigurationError, match="nothing to abort"):
        abort(LOG, TOPIC)
    begin(LOG, TOPIC, 6)
    driver = Repartition(LOG)
    wait_until(lambda: driver.step() and EpochSlot.objects.filter(epoch=2).exists())
    with pytest.raises(ConfigurationError, match="no way back"):
        abort(LOG, TOPIC)
    finish()
    assert [(one.number, one.base, one.partitions) for one in epochs(LOG, TOPIC)] == [(0, 0, 4), (2, 10, 6)]


def test_a_dropped_topic_goes_on_with_its_last_partitions() -> None:
    """What still publishes remembers them, and no number is used again."""
    alter(6)
    drop(LOG, TOPIC)
    Topic.objects.create(name=TOPIC, partitions=9)
    forget_topics()
    assert partition_of(publish(TOPIC, 1, key="a").offset) == 4 + crc("a") % 6
    assert [(one.base, one.partitions) for one in epochs(LOG, TOPIC)] == [(4, 6)]


@SLOTTED
@pytest.mark.parametrize("held", [0, 7, 255])
def test_the_horizon_waits_for_whoever_holds_a_slot_old_or_new(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert_sql, "slot", lambda: held)
    with OpenTransaction() as former:
        former.do(lambda: publish(TOPIC, 1, key="a"))
        begin(LOG, TOPIC, 6)
        driver = Repartition(LOG)
        wait_until(lambda: (left := driver.step()) and left.left == 1)
        monkeypatch.setattr(insert_sql, "slot", lambda: 9)
        with OpenTransaction() as later:
            later.do(lambda: publish(TOPIC, 1, key="b"))
            highest = publish(TOPIC, 1, key="c").offset or 0
            horizon = Horizon(LOG)
            for _ in range(40):
                assert horizon.probe(highest) < highest - 1
            first, last = (former, later) if held else (later, former)
            first.commit()
            for _ in range(40):
                assert horizon.probe(highest) < highest - 1
            for _ in range(20):
                driver.step()
            for _ in range(40):
                assert horizon.probe(highest) < highest - 1
            last.commit()
        wait_until(lambda: horizon.probe(highest) >= highest)
        finish()
        assert Horizon(LOG).wait() == highest


@SLOTTED
def test_a_row_that_is_never_free_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many passes in which nothing was free, and then a second, in which it is: the holder ends meanwhile."""
    monkeypatch.setattr(insert_sql, "slot", lambda: 5)
    waited: list[bool] = []
    switch = turning.switch

    def watched(*switched: Any) -> int:
        turned, wait = switch(*switched), switched[-1]
        waited.extend([bool(turned)] if wait else [])
        return turned

    monkeypatch.setattr(turning, "switch", watched)
    with OpenTransaction() as holder:
        holder.do(lambda: publish(TOPIC, 1, key="a"))
        begin(LOG, TOPIC, 6)
        driver = Repartition(LOG)
        for _ in range(STUBBORN + 1):
            driver.step()
        assert waited == [False]
        with connection.cursor() as cursor:  # as it was before
            cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout")
            assert cursor.fetchone()[0] > turning.WAIT
        holder.commit()
    finish()


@pytest.mark.database("postgresql")
def test_a_batch_of_repeated_ids_asks_for_the_generation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate has no row where another generation is in force; that looks like a batch of which nothing was new."""
    alter(6)
    messages = [NewMessage(n, id=f"i{n}") for n in range(3)]
    publish_many(TOPIC, messages)
    monkeypatch.setattr(type(connections["default"]), "copy", lambda *_: pytest.fail("a further connection"))
    with transaction.atomic(), CaptureQueriesContext(connections["default"]) as captured:
        assert publish_many(TOPIC, messages).ignored == 3
    asked = [query["sql"] for query in captured if "last_value" in query["sql"] and "INSERT" not in query["sql"]]
    assert len(asked) == 1


@GATED
def test_only_the_gate_is_waited_for_and_publishers_are_not_held_up() -> None:
    """While the change cannot go on, no publisher waits."""
    with OpenTransaction() as old:
        old.do(lambda: publish_many(TOPIC, [NewMessage(n, key=f"k{n}") for n in range(500)]))
        begin(LOG, TOPIC, 6)
        driver = Repartition(LOG)
        for n in range(30):
            driver.step()
            with transaction.atomic():
                publish(TOPIC, n, key=f"k{n}")
        assert not Layout.objects.filter(end__isnull=False).exists()
    finish()


class Publishers:
    """Threads that publish keys that they share, in transactions of one or several statements."""

    def __init__(self, threads: int) -> None:
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self.published = 0
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]

    def __enter__(self) -> Publishers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.errors, self.errors

    def _run(self, number: int) -> None:
        dice = random.Random(number)
        try:
            while not self.stopping.is_set():
                self._transaction(dice)
                time.sleep(0.005)  # SQLite's lock is not fair
        except BaseException as error:
            self.errors.append(error)
        finally:
            connections.close_all()

    def _transaction(self, dice: random.Random) -> None:
        way = dice.random()
        try:
            if way < 0.4:
                publish(TOPIC, 1, key=f"k{dice.randrange(8)}")
                self.published += 1
                return
            with transaction.atomic():
                for _ in range(dice.randint(1, 3)):
                    publish(TOPIC, 1, key=f"k{dice.randrange(8)}")
                    time.sleep(dice.random() * 0.02)
                    if dice.random() < 0.3:
                        publish_many(TOPIC, [NewMessage(n, key=f"k{dice.randrange(8)}") for n in range(5)])
                if way > 0.9:
                    transaction.set_rollback(True)
            self.published += 1
        except DatabaseError as error:
            if "deadlock" not in str(error).lower() and "locked" not in str(error).lower():
                raise


def check_order(first: int) -> None:
    """No key goes back to an epoch that it has left, and no message lies behind the end of its epoch."""
    blocks = {e.epoch: range(e.base, e.base + e.partitions) for e in Layout.objects.filter(topic=TOPIC)}
    ends = {e.epoch: e.end for e in Layout.objects.filter(topic=TOPIC, end__isnull=False)}
    last: dict[str, int] = defaultdict(int)
    seen = set()
    rows = Message.objects.filter(topic=TOPIC).order_by("offset").values_list("offset", "partition_key", "partition")
    for offset, key, partition in rows:
        epoch = next(epoch for epoch, numbers in blocks.items() if partition in numbers)
        assert partition == blocks[epoch].start + crc(key) % len(blocks[epoch])
        assert epoch >= last[key], f"{key} goes back from {last[key]} to {epoch} at {offset}"
        assert epoch not in ends or offset <= ends[epoch], f"{offset} lies behind the end of {epoch}: {ends[epoch]}"
        last[key] = epoch
        seen.add(epoch)
    assert len(seen) >= first


def test_many_publish_while_it_is_altered_again_and_again() -> None:
    with Publishers(2 if connection.vendor == "sqlite" else 4) as publishers:
        wait_until(lambda: publishers.published > 20)
        for partitions in (7, 2, 5):
            alter(partitions)
            base = epochs(LOG, TOPIC)[-1].base
            wait_until(lambda base=base: Message.objects.filter(partition__gte=base).count() > 20)
    check_order(4)
    assert under_way(LOG) is None


@GATED
def test_whoever_dies_at_a_step_another_one_goes_on() -> None:
    """Each step is taken by a process of its own, so to speak: all that is known is in the tables."""
    with Publishers(3):
        begin(LOG, TOPIC, 6)
        wait_until(lambda: Repartition(LOG).step() is None)
        wait_until(lambda: Message.objects.filter(partition__gte=4).count() > 20)
    check_order(2)
