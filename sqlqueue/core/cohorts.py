"""Cohorts: subscribers that serve the same groups, partitions and numbers of slices. One of them speaks for all.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

GroupTopic = tuple[str, str]  # (group, topic)
# What a subscriber serves: the partitions as text ("": all), and how many slices it asks for, by (group, topic).
Serving = Mapping[GroupTopic, tuple[str, int]]

SIZE = 15  # bytes of a digest


def cohort_of(serving: Serving) -> str:
    """Return the digest of what a subscriber serves: two serve the same if theirs are equal."""
    parts = (part for pair, (partitions, sharing) in sorted(serving.items()) for part in (*pair, partitions, sharing))
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=SIZE).hexdigest()
