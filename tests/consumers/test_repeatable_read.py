"""At REPEATABLE READ atomic handlers run side by side without being in each other's way."""

import time

import pytest
from django.db import connections

from sqlqueue import publish_many
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming

MESSAGES = 300


@pytest.mark.database("mariadb", "mysql")
def test_their_acks_do_not_deadlock_on_the_gap_where_they_are_inserted(
    consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A locking look for a row that is not there locks the gap, for two at a time, and then neither can insert."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    options = {**connections.settings["default"]["OPTIONS"], "isolation_level": "repeatable read"}
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", options)
    caplog.set_level("INFO", "sqlqueue")

    @consuming.consumer("t", atomic=True, ordering="none", max_attempts=1)
    def handle(delivery) -> None:
        Effect.objects.create(name="seen", value=str(delivery.payload))
        time.sleep(0.005)

    publish_many("t", range(MESSAGES))
    consuming.drain(threads=8)
    again = sum("event=handler_rerun" in record.getMessage() for record in caplog.records)
    assert again <= MESSAGES // 100
    assert sorted(Effect.objects.values_list("value", flat=True), key=int) == [str(n) for n in range(MESSAGES)]
