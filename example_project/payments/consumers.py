"""The handlers of payments: one calls the bank, within its limits, and one looks at large payments only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from example_project.payments import bank
from example_project.payments.rules import AUDIT, BANK, LARGE, TOPIC
from sqlqueue import Delivery, consumer

KEPT = timedelta(days=1)


@consumer(TOPIC, group=BANK, rate_limit="100/m", concurrency_limit=2, retry_budget="10/m", keep_results=KEPT)
def transfer(delivery: Delivery) -> dict[str, Any]:
    """Have the bank pay.

    It takes 100 requests in a minute and two at once, from all consumer processes together. When more than ten have
    failed in a minute, one payment at a time is tried until the bank is there again.
    """
    return {"receipt": bank.transfer(delivery.id, delivery.payload["amount"])}


@consumer(TOPIC, group=AUDIT, where={"payload.amount__gt": LARGE}, keep_results=KEPT)
def audit(delivery: Delivery) -> dict[str, Any]:
    """Note a large payment; the others are settled without this handler."""
    return {"audited": delivery.payload["amount"]}
