"""`runconsumers --drain` says what it leaves, so that a message that waits for its retry does not look lost."""

import re

import pytest

from sqlqueue import Delivery, Retry, publish
from sqlqueue.management.drained import what_waits
from tests.consumer_processes import Consumers
from tests.consuming import Consuming, seconds_until_due
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.once

WAITS = r"1 message waits for a retry or a later time, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.mark.parametrize("processes", [0, 1])
def test_a_drain_says_how_many_messages_wait_and_until_when(consumers: Consumers, processes: int) -> None:
    consumers.publish("steady", "done")
    publish("steady", {"notes": str(consumers.notes)}, id="later", delay=3_600)
    command = consumers.start("steady", processes=processes, drain=True)
    assert command.wait() == 0
    assert re.search(WAITS, command.output), command.output


@pytest.mark.parametrize("processes", [0, 1])
def test_the_first_failure_of_a_handler_is_said_to_wait_for_its_retry(consumers: Consumers, processes: int) -> None:
    consumers.publish("keyed", "a", then="fail")  # its backoff is the default, a second: over when the command ends
    command = consumers.start("keyed", processes=processes, drain=True)
    assert command.wait() == 0
    assert consumers.noted("end") == {("a", 1): 1}
    assert re.search(WAITS, command.output), command.output
    assert re.search("event=delivery_failed .*at the first attempt", command.output), command.output


def test_what_has_become_due_while_the_command_ended_is_said_too(consuming: Consuming) -> None:
    def fail(delivery: Delivery) -> None:
        raise Retry("not yet", delay=0.5)

    consuming.consumer("orders", fail)
    publish("orders", 1)
    offset = publish("orders", 2).offset
    assert offset
    consuming.drain()
    wait_until(lambda: seconds_until_due(offset) < 0)
    assert "2 messages wait" in what_waits([LOG], consuming.registered(), 60.0)
    assert what_waits([LOG], consuming.registered()) == ""
