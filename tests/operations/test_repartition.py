"""The change of a topic's partitions: publishers go over to a new epoch while they publish."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from django.db import connection, connections, transaction
from django.db.utils import DatabaseError, IntegrityError

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.database import insert_sql
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.known_layouts import forget_layouts, known_layouts
from sqlqueue.database.statements import execute
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.layouts import epochs
from sqlqueue.models import EpochEnd, EpochSlot, Layout, Message, PublishGate, SubscriberHeartbeat, Topic
from sqlqueue.operations import repartition
from sqlqueue.operations.repartition import Repartition, abort, begin, under_way
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
    begin("default", TOPIC, partitions)
    finish()


def finish(timeout: float = 60.0) -> None:
    until = time.monotonic() + timeout
    for progress in Repartition("default").run(0.01):
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
    assert [(e.number, e.base, e.partitions, e.end) for e in epochs("default", TOPIC)] == [
        (0, 0, 4, before),
        (1, 4, 6, during),
        (2, 10, 2, None),
    ]
    assert under_way("default") is None
    assert not EpochSlot.objects.exists()
