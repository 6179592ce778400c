"""What a bound in bytes leaves of a read."""

from collections.abc import Sequence


def fitting(sizes: Sequence[int], most: int | None) -> int:
    """Return how many messages of these sizes, beginning with the first, have so many bytes; one at least."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and most is not None and total > most:
            return count
    return len(sizes)
