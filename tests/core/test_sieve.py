"""When what a filter leaves out is not read whole."""

import pytest

from sqlqueue.core.filters import Filter
from sqlqueue.core.partition.arrivals import ENOUGH, RARE
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import ConsumerOptions, PartitionRef
from sqlqueue.core.partition.window import Found
from sqlqueue.core.settle_plan import FetchedMessage
from tests.factories import MessageValueFactory

pytestmark = pytest.mark.once

FILTER = Filter({"key": "y"})
END = 1_000


def assigned(where: Filter | None = FILTER) -> AssignedPartition:
    options = ConsumerOptions(where=where, batch_size=END)
    return AssignedPartition(PartitionRef("g", "t", 0), options, id=1, token=1, position=0, watermark=0, claimed=0)


def sifts_after(stream: AssignedPartition, keys: str) -> bool:
    """Let messages with these keys be read as the partition asks for them; return whether it sifts next."""
    read = stream.next_read(END)
    assert read is not None
    messages = [MessageValueFactory(offset=read.start + n, key=key) for n, key in enumerate(keys, 1)]
    found = Found([], messages)
    if read.sift is not None:
        others = [(*message, 0) for message in messages if message.key != "y"]
        found = Found([], read.sift.select(messages), others)
    assert stream.take_in(read._replace(limit=len(keys)), found, END) == len(keys)
    following = stream.next_read(END)
    assert following is not None
    return following.sift is not None


def test_once_enough_messages_were_read_of_which_few_match() -> None:
    assert not sifts_after(assigned(), "n" * (ENOUGH - 1))
    assert sifts_after(assigned(), "n" * ENOUGH)
    assert sifts_after(assigned(), "y" * ENOUGH + "n" * (RARE - 1) * ENOUGH)
    assert not sifts_after(assigned(), "y" * ENOUGH + "n" * ((RARE - 1) * ENOUGH - 1))


def test_few_messages_at_a_time_are_read_whole() -> None:
    """A second statement would delay them, and spares little."""
    stream = assigned()
    assert not any(sifts_after(stream, "n") for _ in range(10 * ENOUGH))


def test_without_a_filter_all_are_read_whole() -> None:
    assert not sifts_after(assigned(None), "n" * ENOUGH)


def test_when_more_match_messages_are_read_whole_again_and_few_at_first() -> None:
    """Nothing is known of the size of what was left out meanwhile."""
    stream = assigned()
    assert sifts_after(stream, "n" * ENOUGH)
    assert stream.budget.weighed
    assert not sifts_after(stream, "y" * ENOUGH)
    assert not stream.budget.weighed
    assert stream.queues.ready == ENOUGH


def test_a_payload_that_is_looked_at_counts_for_how_much_is_read_at_once() -> None:
    stream = assigned(Filter({"payload.n": 1}))
    assert sifts_after(stream, "n" * ENOUGH)
    before = stream.room
    read = stream.next_read(END)
    assert read is not None
    heavy: FetchedMessage = MessageValueFactory(payload="x" * 1_000_000)
    others = [(*heavy._replace(offset=read.start + n), 0) for n in range(1, ENOUGH)]
    stream.take_in(read._replace(limit=len(others)), Found([], [], others), END)
    assert stream.room < before / 100


def test_what_was_not_read_whole_is_never_dispatched() -> None:
    """Even if the filter cannot read its JSON this time, as happens with what is nested as deep as Python reads."""

    class Unsure(Filter):
        def matches(self, message: tuple[object, ...]) -> bool:
            return True

    stream = assigned(Unsure({"key": "y"}))
    assert not sifts_after(stream, "y")
    read = stream.next_read(0)
    assert read is not None
    thin = (*MessageValueFactory(offset=read.start + 1, key="n", id=None, payload=None), 0)
    ready = stream.queues.ready
    stream.take_in(read._replace(sift=FILTER), Found([], [], [thin]), 0)
    assert stream.queues.ready == ready
