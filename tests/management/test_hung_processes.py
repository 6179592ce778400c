"""A process whose loop hangs is replaced, and its log says where it was."""

from collections.abc import Callable

import pytest

from sqlqueue import publish
from sqlqueue.models import PartitionLease
from tests.processes import ManageCommand, wait_until
from tests.progress import settled

pytestmark = pytest.mark.once

Run = Callable[..., ManageCommand]


@pytest.mark.parametrize("topic", ["hang", "deaf"])
def test_a_process_whose_loop_hangs_is_replaced_and_its_log_says_where_it_was(run: Run, topic: str) -> None:
    """Also one that holds Python's lock, so that none of its threads can do anything, not even stop."""
    command = run("--topic", topic, HUNG_AFTER=2, HEARTBEAT_INTERVAL=0.5, LEASE_DURATION=2)
    publish(topic, 1)
    command.wait_for_line(r"event=process_hangs")
    command.wait_for_line(r'File ".*handlers.py", line \d+ in hang')
    if topic == "hang":
        command.wait_for_line(r"event=loop_hangs .*at=.*handlers.py")
    first = command.wait_for_line(r"event=process_died .*subscriber=(\S+)")[1]
    wait_until(lambda: PartitionLease.objects.filter(topic=topic).exclude(holder__in=["", first]).exists())
    assert settled(topic, "aircraft"), "what had been settled before comes again"
