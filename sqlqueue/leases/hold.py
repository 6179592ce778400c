"""Renew, release, and free leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlqueue.database import faults
from sqlqueue.database.dialects import execute

# All of a subscriber's leases at once. Index: holder.
RENEW = "UPDATE sqlqueue_partition_lease SET valid_until = {later} WHERE holder = %s"
HELD = 'SELECT consumer_group, topic, "partition", fencing_token FROM sqlqueue_partition_lease WHERE holder = %s'
# Index: holder.
RELEASE = """
    UPDATE sqlqueue_partition_lease SET holder = '', valid_until = NULL WHERE holder = %s AND ({places})
"""
PLACE = '(topic = %s AND consumer_group = %s AND "partition" IN ({marks}))'
PLACES_AT_ONCE = 100
FREE = "UPDATE sqlqueue_partition_lease SET holder = '', valid_until = NULL WHERE holder = %s"  # index: holder


def renew(alias: str, subscriber: str, lease_duration: float) -> int:
    """Prolong all of a subscriber's leases to `lease_duration` from now; return how many it still has.

    An expired lease that nobody has taken is still its holder's: the token is the same.
    """
    return faults.run_statement(alias, _count, alias, RENEW, (round(lease_duration * 1_000_000), subscriber))


def held(alias: str, subscriber: str) -> dict[tuple[str, str, int], int]:
    """Return the fencing token of every (group, topic, partition) that a subscriber holds."""
    rows = execute(alias, HELD, (subscriber,)).fetchall()
    return {(group, topic, partition): token for group, topic, partition, token in rows}


def release(alias: str, subscriber: str, partitions: Mapping[tuple[str, str], Iterable[int]]) -> None:
    """Give up these leases, by (group, topic), so that another subscriber takes them at once; what is no longer held is
    left alone."""
    wanted = [(place, sorted(numbers)) for place, numbers in sorted(partitions.items()) if numbers]
    for start in range(0, len(wanted), PLACES_AT_ONCE):
        places: list[str] = []
        values: list[object] = [subscriber]
        for (group, topic), numbers in wanted[start : start + PLACES_AT_ONCE]:
            places.append(PLACE.replace("{marks}", ", ".join(["%s"] * len(numbers))))
            values += (topic, group, *numbers)
        text = RELEASE.replace("{places}", " OR ".join(places))
        faults.run_statement(alias, _count, alias, text, tuple(values))


def free(alias: str, subscriber: str) -> int:
    """Free the leases of an incarnation that is known to be dead (its supervisor has seen it end); return how many.

    What it had in hand is recovered by whoever acquires them next.
    """
    return faults.run_statement(alias, _count, alias, FREE, (subscriber,))


def _count(alias: str, text: str, parameters: tuple[object, ...]) -> int:
    return int(execute(alias, text, parameters).rowcount)
