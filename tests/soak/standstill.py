"""How long nothing at all began in a run although no fault tells why."""

from collections.abc import Collection
from itertools import pairwise

from tests.soak import workload
from tests.soak.progress import RECOVERY
from tests.soak.records import Record
from tests.soak.schedule import OF_ONE_PROCESS
from tests.soak.spans import longest_gap

# These bring no other process to a standstill.
LOCAL = {*OF_ONE_PROCESS, "pause-topic"}


def longest_standstill(record: Record, began: float, ended: float, of_nodes: Collection[str] = frozenset()) -> float:
    """Return the longest time, after the beginning and before the end, in which no handler began and no fault was at
    work that can bring everybody to a standstill.

    of_nodes: kinds of faults that end as soon as another node lets clients in. All connections are made anew then, and
    leases may have to end.
    """
    first = record.handlings[0].began if record.handlings else began
    faults = [fault for fault in record.faults if fault.kind not in LOCAL]
    after = workload.UNSERVED + RECOVERY * record.crowded
    known = [(fault.began, fault.ended + after * (fault.kind in of_nodes)) for fault in faults]
    known += [(phase.began, phase.ended) for phase in record.phases if phase.kind == "idle"]  # nothing is published
    moments = [first, *(h.began for h in record.handlings if first <= h.began <= ended), ended]
    spans = [(low, high) for low, high in pairwise(moments) if high - low > workload.LEASE_DURATION]
    return max((longest_gap(low, high, known) for low, high in spans), default=0.0)
