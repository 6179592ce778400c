"""Whether the limits of groups were kept by all their processes together, as docs/guide.md states them.

In any stretch of time no more messages start than the rate allows in it, one, and what it allows in 1.25
BALANCE_INTERVALs; and in each process that starts some, those that had been dispatched before and waited for a thread.
No more handlers run at once than are allowed, but for one that is over its time, and those of a process that was cut
off from the database for as long as a lease.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.soak.explanations import Explanations, overran
from tests.soak.records import NEVER, Handling, Record
from tests.soak.workload import BALANCE_INTERVAL, JOB_READERS, THREADS

BURST = 1.25 * BALANCE_INTERVAL  # seconds of the rate, beside one message
DISPATCHED = 2 * THREADS  # messages that wait for a thread of a process at most
STRETCH = 300  # starts: the longest stretch that is looked at


def exceeded(record: Record, explanations: Explanations) -> Iterator[str]:
    """Yield where a limit was exceeded."""
    for reader in JOB_READERS:
        handlings = [each for each in record.handlings if (each.topic, each.group) == (reader.topic, reader.group)]
        if reader.rate is not None:
            for count, seconds, allowed in too_many(handlings, reader.rate):
                yield f"{reader.group}: {count} messages began in {seconds:.3f} s, and {allowed:.1f} may"
        if reader.concurrency is not None:
            for at, running in at_once(handlings, reader.concurrency, explanations):
                yield f"{reader.group}: {running} handlers ran at {at:.3f}, and {reader.concurrency} may"


def too_many(handlings: Sequence[Handling], rate: float) -> Iterator[tuple[int, float, float]]:
    """Yield how many messages began in how many seconds, and how many may, for each stretch in which these are more. No
    two of them overlap."""
    first = 0
    while first < len(handlings):
        began, processes = handlings[first].began, set()
        for number, handling in enumerate(handlings[first : first + STRETCH], start=1):
            processes.add(handling.process)
            seconds = handling.began - began
            allowed = 1 + rate * (seconds + BURST) + DISPATCHED * len(processes)
            if number > allowed:
                yield number, seconds, allowed
                first += number - 1
                break
        first += 1


def at_once(handlings: Sequence[Handling], limit: int, explanations: Explanations) -> Iterator[tuple[float, int]]:
    """Yield when more handlers ran than may, and how many, whenever one more began. Of those that never ended it is not
    known until when they ran."""
    counted = [
        handling
        for handling in handlings
        if handling.ended is not None
        and not overran(handling, NEVER)
        and not explanations.cut_off(handling.process, handling.ended)
    ]
    moments = [(each.until, -1) for each in counted] + [(each.began, 1) for each in counted]
    running = 0
    for at, change in sorted(moments):
        running += change
        if change > 0 and running > limit:
            yield at, running


def most_at_once(handlings: Sequence[Handling]) -> int:
    """Return how many of those that have ended ran at once."""
    ended = [each for each in handlings if each.ended is not None]
    running = most = 0
    for _, change in sorted([(each.until, -1) for each in ended] + [(each.began, 1) for each in ended]):
        running += change
        most = max(most, running)
    return most


def figures(record: Record) -> dict[str, object]:
    """Return how much was checked."""
    limited = {(each.topic, each.group) for each in JOB_READERS if each.rate is not None}
    handlings = [each for each in record.handlings if (each.topic, each.group) in limited]
    processes = len({each.process for each in handlings})
    return {"begun within limits": f"{len(handlings)} in {processes} processes, {most_at_once(handlings)} at once"}
