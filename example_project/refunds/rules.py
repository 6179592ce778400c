"""What the refunds' publisher and handlers share."""

from __future__ import annotations

TOPIC = "refunds"
DECISIONS = "refund-decisions"
GROUP = "refunds"
MOST = 500  # dollars that are paid without a person
EXAMPLES = (("B6-1001", 180), ("UA-1545", 720), ("DL-461", 95))
