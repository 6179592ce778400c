"""Partitions that have a backlog go through the log together; none of them holds up the others for long."""

from collections import OrderedDict

import pytest

from sqlqueue.consumers.engine.reader import BACKLOG, MOST_WAITS, READ_BYTES, Reads, abreast
from sqlqueue.core.outcomes import SUCCESS
from sqlqueue.core.partition import changes, settling
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import ConsumerOptions, PartitionRef
from sqlqueue.core.partition.window import Found
from tests.factories import MessageValueFactory

pytestmark = pytest.mark.once

END = 1_000_000
OF_A_PAGE, PAGES = 16, 160  # messages; pages in the server's memory
UNEVEN = [0] * 3 + [1] * 3 + [2, 2, 3]  # the partitions of nine messages that lie together in the log


class Pool:
    """Counts the pages that a server reads from its disk, which keeps those in memory that it has used last."""

    def __init__(self) -> None:
        self.read = 0
        self.pages: OrderedDict[int, None] = OrderedDict()

    def look_up(self, offset: int) -> None:
        page = offset // OF_A_PAGE
        self.read += page not in self.pages
        self.pages[page] = None
        self.pages.move_to_end(page)
        if len(self.pages) > PAGES:
            self.pages.popitem(last=False)


def reading(
    number: int,
    start: int,
    stride: int = 0,
    *,
    group: str = "g",
    size: int = 10,
    batch_size: int = 100,
    batch: bool = False,
) -> AssignedPartition:
    """Return a partition that has read up to an offset, and has passed so many by its last read."""
    assigned = AssignedPartition(
        PartitionRef(group, "t", number),
        ConsumerOptions(batch_size=batch_size, batch=batch),
        id=1,
        token=1,
        position=start,
        watermark=start,
        claimed=start,
    )
    assigned.window.stride = stride
    assigned.budget.weigh([MessageValueFactory(offset=1, payload="x" * size)])
    return assigned


def wanted(*partitions: AssignedPartition) -> Reads:
    return [(assigned, read) for assigned in partitions if (read := assigned.next_read(END))]


def going(*partitions: AssignedPartition) -> list[int]:
    return [assigned.ref.partition for assigned, _ in abreast(wanted(*partitions), END)]


def test_one_that_is_ahead_waits_for_the_last_one_a_few_times() -> None:
    partitions = reading(0, 100, stride=50), reading(1, 150), reading(2, 151)
    assert [going(*partitions) for _ in range(MOST_WAITS + 2)] == [[0, 1]] * MOST_WAITS + [[0, 1, 2], [0, 1]]


def test_it_waits_only_for_those_that_read() -> None:
    full, ahead = reading(0, 100, stride=50), reading(1, 500_000)
    while (read := full.next_read(END)) is not None:
        assert going(full) == [0]
        first = read.start + 1
        found = [MessageValueFactory(offset=first + number) for number in range(read.limit)]
        full.take_in(read, Found([], found), END)
    assert going(full, ahead) == [1]


def test_those_near_the_end_and_other_groups_do_not_wait() -> None:
    last = reading(0, 100, stride=50)
    assert going(last, reading(1, END - BACKLOG), reading(2, 500, group="other"), reading(3, 500)) == [1, 0, 2]


def test_together_they_bring_what_stays_in_the_servers_memory() -> None:
    heavy = [reading(number, 100, stride=50, size=100_000) for number in range(4)]
    reads = abreast(wanted(*heavy), END)
    assert sum(read.limit for _, read in reads) * 100_000 <= READ_BYTES
    assert {read.limit for _, read in reads} == {2}
    (alone,) = abreast(wanted(heavy[0]), END)
    assert alone[1].limit > 2
    vast = [reading(number, 100, size=2 * READ_BYTES) for number in range(2)]
    assert [read.limit for _, read in abreast(wanted(*vast), END)] == [1, 1]


def test_batches_stay_as_large_as_they_are() -> None:
    some = [reading(number, 100, size=50_000, batch=True) for number in range(4)]
    assert {read.limit for _, read in abreast(wanted(*some), END)} == {100}


def test_a_read_says_how_far_it_has_come() -> None:
    assigned = reading(0, 100)
    ((_, read),) = wanted(assigned)
    read = read._replace(limit=2)
    assigned.take_in(read, Found([], [MessageValueFactory(offset=offset) for offset in (120, 160)]), END)
    assert assigned.window.stride == 60


@pytest.mark.parametrize("batch_size", [100, 1_000])  # of handlers that get one at a time
def test_of_uneven_partitions_each_page_is_read_about_once(batch_size: int) -> None:
    messages = 12_000
    partitions = [reading(number, 0, size=1_000, batch_size=batch_size) for number in range(4)]
    log = [
        [
            MessageValueFactory(offset=offset, payload="x" * 1_000)
            for offset in range(1, messages + 1)
            if UNEVEN[offset % len(UNEVEN)] == number
        ]
        for number in range(4)
    ]
    pool = Pool()
    while any(log):
        reads = [(assigned, read) for assigned in partitions if (read := assigned.next_read(END))]
        for assigned, read in abreast(reads, END):
            its = log[assigned.ref.partition]
            found, its[:] = its[: read.limit], its[read.limit :]
            for message in found:
                pool.look_up(message.offset)
            assigned.take_in(read, Found([], found), END)
        for assigned in partitions:  # the handlers take all of it, and do nothing
            executions = assigned.choose(messages)
            settling.plan(assigned, 0.0, 1.0, executions)
            for execution in executions:
                for attempt in execution.attempts:
                    changes.finish(assigned, attempt, SUCCESS, 0.0)
            settling.plan(assigned, 0.0, 1.0, [])
    assert pool.read <= 1.5 * messages / OF_A_PAGE
