"""Only the control thread touches what is known of a partition; handlers and the lease renewer know its lease."""

import threading

import pytest

from sqlqueue.core.outcomes import SUCCESS
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import ConsumerOptions, HeldLease, PartitionRef
from sqlqueue.core.settle_plan import Attempt
from tests.control_threads import guarded
from tests.factories import MessageValueFactory

pytestmark = pytest.mark.once


def test_the_guard_sees_a_thread_that_touches_it() -> None:
    with guarded() as guard:
        stream = AssignedPartition(
            PartitionRef("g", "t", 0), ConsumerOptions(), id=1, token=1, position=0, watermark=0, claimed=0
        )
        thread = threading.Thread(target=lambda: setattr(stream, "window", stream.window), name="other-1")
        thread.start()
        thread.join()
    assert guard.trespasses == {"other reads window", "other writes window"}


def test_the_guard_sees_who_writes_an_outcome() -> None:
    with guarded() as guard:
        attempt = Attempt(HeldLease(PartitionRef("g", "t", 0), 1, 1), MessageValueFactory(), 1)
        assert not guard.writers
        attempt.outcome = SUCCESS
        assert guard.writers == {"test_the_guard_sees_who_writes_an_outcome"}
        attempt.outcome = SUCCESS
    assert "a second write" in guard.writers
