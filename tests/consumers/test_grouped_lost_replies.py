"""The connection breaks at the commit that several handlers share: all of them are acked, or none is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from sqlqueue import Postpone, publish_many
from sqlqueue.consumers.handlers import atomic as atomic_executor
from sqlqueue.consumers.handlers import runs
from sqlqueue.database.log import Log
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until
from tests.soak.proxy import Proxy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql", "postgresql")]

COMMIT = rb"(?i)\bcommit\b"


@pytest.fixture
def proxy(consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What consumers connect through: this thread has its connection already."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "FLUSH_INTERVAL": 60.0}
    monkeypatch.setattr(runs, "TRANSACTION_LASTS", 30.0)
    connection.ensure_connection()
    here = connections.settings["default"]
    with Proxy(int(here["PORT"])) as proxy:
        monkeypatch.setitem(here, "HOST", "127.0.0.1")
        monkeypatch.setitem(here, "PORT", str(proxy.port))
        yield proxy
        consuming.end_hosts()


@pytest.mark.parametrize("rows", [False, True], ids=["position", "rows"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_all_are_acked_or_none(
    consuming: Consuming, proxy: Proxy, monkeypatch, caplog, committed: bool, rows: bool
) -> None:
    part, calls, broken = atomic_executor.part_commit_hooks, [], []

    def break_it(log: Log) -> None:
        """Just before the commit is sent."""
        part(log)
        if not broken:
            broken.append(True)
            if committed:
                proxy.lose_replies(COMMIT)
            else:
                proxy.cut()

    @consuming.consumer("t", atomic=True, commit_every=10, backoff=0)
    def handle(delivery: Any) -> None:
        if rows and delivery.payload == 0:
            raise Postpone(delay=3600)
        calls.append((delivery.payload, delivery.attempt))
        Effect.objects.create(name="seen", value=str(delivery.payload))

    monkeypatch.setattr(atomic_executor, "part_commit_hooks", break_it)
    publish_many("t", range(10))
    with caplog.at_level(logging.WARNING):
        host = consuming.start()
        wait_until(lambda: "event=commit_outcome_unknown" in caplog.text)
        proxy.restore()
        expected = list(range(rows, 10))
        wait_until(lambda: len(effects()) >= len(expected))
        wait_until(lambda: not host.subscriber.in_flight.executions)
        host.stop()
    assert effects() == expected
    assert {attempt for _, attempt in calls} == {1}
    called = Counter(payload for payload, _ in calls)
    assert called == Counter(expected) if committed else all(called[number] > 1 for number in expected)


def effects() -> list[int]:
    return sorted(int(value) for value in Effect.objects.values_list("value", flat=True))
