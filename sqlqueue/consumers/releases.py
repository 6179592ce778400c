"""The release of partitions: each is settled for the last time, and then its lease is released."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlqueue.consumers.settler import Settler
from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.partition.settling import release_plan
from sqlqueue.database import retries
from sqlqueue.database.server_identity import ServerChanged, SessionReplaced

RELEASED_AT_ONCE = 200  # partitions; more if a single group has more


class Releases:
    """Releases partitions of one process. `give_up` tells it to stop waiting for a database that is unreachable."""

    def __init__(self, settler: Settler, clock: Callable[[], float], give_up: Callable[[], bool]):
        self.log, self.ownership, self.settler = settler.log, settler.ownership, settler
        self._clock, self._give_up = clock, give_up

    def release(self, partitions: Mapping[Subscription, set[int]]) -> None:
        """Settle the partitions under the leases of these numbers for the last time, and release the leases, several in
        one transaction."""
        some: dict[Subscription, set[int]] = {}
        for subscription, numbers in partitions.items():
            some[subscription] = numbers
            if sum(map(len, some.values())) >= RELEASED_AT_ONCE:
                self._release_some(some)
                some = {}
        if some:
            self._release_some(some)

    def _release_some(self, partitions: Mapping[Subscription, set[int]]) -> None:
        now = self._clock()
        assigned_partitions = [
            assigned
            for subscription, numbers in partitions.items()
            for number in sorted(numbers)
            for assigned in subscription.of_partition(number)
        ]
        try:
            settled = self.settler.execute([release_plan(assigned, now) for assigned in assigned_partitions])
        except (ServerChanged, SessionReplaced):
            settled = []  # the next owner recovers what was in flight
        if settled is not None:
            before = self.log.connection.connection
            retries.patiently(self.log, self.ownership.release, partitions, give_up=self._give_up)
            if self.log.connection.connection is not before:
                self.settler.server.doubtful = True
