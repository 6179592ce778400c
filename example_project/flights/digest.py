"""The order digest: a hash of a sequence of flights."""

from __future__ import annotations

import hashlib

EMPTY_DIGEST = ""


def next_digest(digest: str, flight_id: str) -> str:
    """Return the digest of a sequence with `flight_id` added to it.

    It is chained: a flight that is lost, duplicated or out of order changes every digest after it.
    """
    return hashlib.sha256(f"{digest} {flight_id}".encode()).hexdigest()
