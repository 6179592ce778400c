"""Where nothing new can be read any more, health, the doctor, the admin and queuestatus say why, and what to do; and it
goes on by itself once that is mended."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from sqlqueue import Delivery, NewMessage, Retry, publish_many
from sqlqueue.core.partition import window
from sqlqueue.database.log import Log
from sqlqueue.management.doctor import Diagnosis, Diagnostics, queue
from sqlqueue.models import DeliveryState
from sqlqueue.monitoring.responses import health
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.findings import ERROR, WARNING
from sqlqueue.stats.survey import survey_with_partitions
from tests.admin.test_overview import page, words
from tests.consumers.test_reading import OpenPublish
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until
from tests.progress import wait_until_settled

pytestmark = pytest.mark.django_db(transaction=True)
ALIAS, GROUP = "default", "default"
LIMIT, MESSAGES = 20, 60


@pytest.fixture(autouse=True)
def _small(consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "HEADS_LIMIT", LIMIT)
    monkeypatch.setattr(window, "WINDOW_LIMIT", LIMIT)
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "HEARTBEAT_INTERVAL": 0.2}


@pytest.fixture
def told(admin_client: Client, capsys: pytest.CaptureFixture[str]) -> Any:
    """Wait until everything tells of a limit, with these words in what people read."""

    def tell(why: str, level: str, problem: str, state: str) -> None:
        wait_until(lambda: [one.stuck for one in survey_with_partitions(Log.of(ALIAS), "t", GROUP)[1]] == [why], 20)
        recent_survey.forget()
        answer = health(detailed=True)
        assert answer.status == 503
        assert [(one["limit"], one["value"]) for one in answer.body["passed"]] == [(f"{why}_partitions", 1)]
        assert level in [
            one.level for one in doctors() if one.about == "stuck watermarks" and "new is read" in one.text
        ]
        assert problem in words(page(admin_client, "/admin/sqlqueue/overview/"))
        call_command("queuestatus")
        assert state in " ".join(capsys.readouterr().out.split())

    return tell


def doctors() -> list[Diagnosis]:
    return list(queue(Diagnostics(Log.of(ALIAS), [])))


def test_a_group_that_fails_so_much_that_nothing_new_is_read_is_told(
    consuming: Consuming, told: Callable[..., None]
) -> None:
    broken = [True]

    @consuming.consumer("t", batch_size=5, max_attempts=1_000)
    def handle(delivery: Delivery) -> None:
        if broken:
            raise Retry(delay=2.0)

    publish_many("t", [NewMessage(number, key=f"k{number}") for number in range(MESSAGES)])
    consuming.start()
    told("full", ERROR, "This group fails: mend its handler", "fail that nothing new is read there")
    assert DeliveryState.objects.filter(acked=False).count() < MESSAGES
    broken.clear()
    wait_until_settled("t", GROUP)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_transaction_beyond_which_nothing_more_is_delivered_is_told(
    consuming: Consuming, told: Callable[..., None]
) -> None:
    seen: list[object] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload), batch_size=5)
    holder = OpenPublish("held", key="h")
    publish_many("t", [NewMessage(number, key=f"k{number}") for number in range(MESSAGES)])
    consuming.start()
    try:
        told("held", WARNING, "Find the transaction", "transaction that is still open that nothing new is read there")
        assert LIMIT <= len(seen) < MESSAGES
    finally:
        holder.commit()
    wait_until_settled("t", GROUP)
    assert len(seen) == MESSAGES + 1
