"""What the caller and the handler of seats share."""

from __future__ import annotations

TOPIC = "seats"
CAPACITY = {"B6-1001": 162, "UA-1545": 150, "DL-461": 160}
"""The seats of the flights that are on sale, before the first is reserved."""
