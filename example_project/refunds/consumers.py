"""The handlers: what is asked for, and what a person has decided."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from example_project.payments.paying import pay_refund
from example_project.refunds.rules import DECISIONS, GROUP, MOST, TOPIC
from sqlqueue import Delivery, HandOver, Reject, consumer
from sqlqueue.contrib.people import work_on

KEPT = timedelta(days=1)

work_on(TOPIC, decisions=DECISIONS, within=timedelta(days=2))


@consumer(TOPIC, group=GROUP, keep_results=KEPT)
def refund(delivery: Delivery) -> dict[str, Any]:
    """Pay a small amount; leave another one to a person, with a form that is filled in."""
    flight, amount = delivery.payload["flight"], delivery.payload["amount"]
    if amount > MOST:
        raise HandOver(f"{amount} dollars are more than {MOST}", form={"approved": False})
    return {"paid": pay_refund(flight, amount)}


@consumer(DECISIONS, group=GROUP, keep_results=KEPT)
def carry_out(delivery: Delivery) -> dict[str, Any]:
    """Pay what a person has approved."""
    decision = delivery.payload
    if not isinstance(decision, dict) or not isinstance(decision.get("approved"), bool):
        raise Reject('a decision needs "approved": true or false')
    return {"paid": pay_refund(decision["flight"], decision["amount"]) if decision["approved"] else 0}
