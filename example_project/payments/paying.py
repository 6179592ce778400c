"""Publishing of payments, and what the bank has made of them."""

from __future__ import annotations

from example_project.payments.rules import BANK, TOPIC
from sqlqueue import GroupStatus, get_status, publish


def pay_refund(flight: str, amount: int) -> int:
    """Publish the payment of a flight's refund, once however often a handler is retried; return its amount."""
    publish(TOPIC, {"flight": flight, "amount": amount}, key=flight, id=_id(flight))
    return amount


def refund_payment(flight: str) -> GroupStatus | None:
    """Return how a refund's payment stands with the bank; None if nothing is to be paid, or not yet."""
    status = get_status(TOPIC, id=_id(flight), key=flight)
    return status.groups.get(BANK) if status else None


def _id(flight: str) -> str:
    return f"refund:{flight}"
