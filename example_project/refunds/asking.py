"""Publishing of some refunds that passengers ask for."""

from __future__ import annotations

from example_project.refunds.rules import EXAMPLES, TOPIC
from sqlqueue import NewMessage, publish_many


def ask_for_refunds() -> int:
    """Publish the examples that are not published yet; return how many of them were new."""
    asked = [NewMessage({"flight": flight, "amount": amount}, key=flight, id=flight) for flight, amount in EXAMPLES]
    return publish_many(TOPIC, asked).created
