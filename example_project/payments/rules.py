"""What the payments' publisher and handlers share."""

from __future__ import annotations

TOPIC = "payments"
BANK = "bank"
AUDIT = "audit"
LARGE = 500  # dollars; what is paid beyond is audited
