"""The example's refunds: small ones are paid by the handler, large ones by what a person decides."""

import sys
from importlib import import_module
from typing import Any

import pytest

from example_project.refunds.asking import ask_for_refunds
from example_project.refunds.rules import DECISIONS, GROUP, TOPIC
from example_project.settings import SQLQUEUE
from sqlqueue import get_status
from sqlqueue.contrib.people import work
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.models import Message
from sqlqueue.testing import drain
from tests.consuming import Consuming

MODULE = "example_project.refunds.consumers"


@pytest.fixture(autouse=True)
def _handlers(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = SQLQUEUE
    sys.modules.pop(MODULE, None)
    import_module(MODULE)


def paid(topic: str, id: str, key: str) -> Any:
    status = get_status(topic, id=id, key=key)
    assert status is not None
    return status.groups[GROUP].result


def test_a_large_refund_waits_for_a_person() -> None:
    assert (ask_for_refunds(), ask_for_refunds()) == (3, 0)
    drain()
    assert paid(TOPIC, "B6-1001", "B6-1001") == {"paid": 180}
    assert paid(TOPIC, "UA-1545", "UA-1545") is None
    item = WorkItem.objects.get()
    assert (item.message_id, item.reason, item.form) == (
        "UA-1545",
        "720 dollars are more than 500",
        {"approved": False},
    )
    assert item.due_at is not None
    work.finish(item.pk, item.version, "ann", {**item.payload, "approved": True})
    drain()
    assert paid(DECISIONS, f"work-item-{item.pk}", "UA-1545") == {"paid": 720}


@pytest.mark.parametrize(("decision", "result"), [({"amount": 9, "approved": False}, {"paid": 0}), ("yes", None)])
def test_a_refusal_pays_nothing_and_what_is_no_decision_is_rejected(decision: Any, result: Any) -> None:
    ask_for_refunds()
    drain()
    item = WorkItem.objects.get()
    work.finish(item.pk, item.version, "ann", decision)
    drain()
    assert paid(DECISIONS, f"work-item-{item.pk}", "UA-1545") == result
    assert Message.objects.dead_letters().count() == (result is None)
