"""`runconsumers --drain` says what it leaves, so that a message that waits for its retry does not look lost."""

import re

import pytest

from sqlqueue import publish
from tests.consumer_processes import Consumers


@pytest.mark.parametrize("processes", [0, 1])
def test_a_drain_says_how_many_messages_wait_and_until_when(consumers: Consumers, processes: int) -> None:
    consumers.publish("steady", "done")
    publish("steady", {"notes": str(consumers.notes)}, id="later", delay=3_600)
    command = consumers.start("steady", processes=processes, drain=True)
    assert command.wait() == 0
    said = r"1 message waits for a retry or a later time, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.search(said, command.output), command.output
