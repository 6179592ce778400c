"""The example's payments: within the bank's limits, and large ones are audited."""

import sys
import threading
import time
from importlib import import_module
from typing import Any

import pytest

from example_project.payments import bank
from example_project.payments.paying import pay_refund, refund_payment
from example_project.payments.rules import AUDIT, BANK, LARGE, TOPIC
from example_project.settings import SQLQUEUE
from sqlqueue import get_status
from sqlqueue.conf import settings as options
from sqlqueue.database.log import Log
from sqlqueue.log.groups import override_flow
from sqlqueue.models import Message
from sqlqueue.stats.survey import survey
from sqlqueue.testing import drain
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until

MODULE = "example_project.payments.consumers"


@pytest.fixture(autouse=True)
def _handlers(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = QUICK | SQLQUEUE
    sys.modules.pop(MODULE, None)
    import_module(MODULE)


@pytest.mark.django_db
def test_a_refund_is_paid_once() -> None:
    assert refund_payment("UA-1545") is None
    for _ in range(2):
        assert pay_refund("UA-1545", 120) == 120
    assert drain(groups=[BANK]) == 1
    payment = refund_payment("UA-1545")
    assert payment is not None
    assert payment.result == {"receipt": "120 USD for refund:UA-1545"}


@pytest.mark.django_db
def test_only_large_payments_are_audited() -> None:
    for flight, amount in [("UA-1", LARGE), ("UA-2", LARGE + 1)]:
        pay_refund(flight, amount)
    assert drain(groups=[AUDIT]) == 1
    results = []
    for flight in ("UA-1", "UA-2"):
        status = get_status(TOPIC, id=f"refund:{flight}", key=flight)
        assert status is not None
        assert status.groups[AUDIT].state == "acked"
        results.append(status.groups[AUDIT].result)
    assert results == [None, {"audited": LARGE + 1}]


@pytest.mark.django_db(transaction=True)
def test_two_processes_call_the_bank_twice_at_once_at_most(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, lock = consuming.gate(), threading.Lock()
    calls = {"now": 0, "most": 0, "all": 0}

    def transfer(reference: str, amount: int) -> str:
        with lock:
            calls["now"] += 1
            calls["all"] += 1
            calls["most"] = max(calls["most"], calls["now"])
        gate.wait()
        time.sleep(0.05)  # what the bank takes, so that calls overlap
        with lock:
            calls["now"] -= 1
        return reference

    monkeypatch.setattr(bank, "transfer", transfer)
    for number in range(12):
        pay_refund(f"UA-{number}", 100)
    consuming.start(BANK)
    consuming.start(BANK)
    wait_until(lambda: calls["now"])
    override_flow(
        Log.of(options.DATABASE), group=BANK, topic=TOPIC, values={"rate_limit": "1000/s"}
    )  # the other limit alone
    wait_until(lambda: calls["now"] == 2 and survey(Log.of(options.DATABASE)).groups[0].limited)
    gate.set()
    wait_until(lambda: calls["all"] == 12)
    assert calls["most"] == 2


@pytest.mark.django_db(transaction=True)
def test_a_bank_that_is_away_is_not_called_again_and_again(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    def transfer(reference: str, amount: int) -> str:
        raise ConnectionRefusedError("the bank is away")

    monkeypatch.setattr(bank, "transfer", transfer)
    for number in range(40):
        pay_refund(f"UA-{number}", 100)
    consuming.start(BANK)
    wait_until(lambda: survey(Log.of(options.DATABASE)).groups[0].budget_spent)
    consuming.end_hosts()
    assert Message.objects.dead_letters().count() == 0
