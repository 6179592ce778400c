"""What an earlier sqlqueue does not know is used: its consumers are waited for, its publishers fail loudly, and nothing
is lost, handled twice or out of order."""

from __future__ import annotations

import re
import time

import pytest

from tests.processes import ManageCommand, wait_until
from tests.upgrade.conftest import Earlier
from tests.upgrade.sides import Course, Side, end

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LOOKS = 3  # seconds in which a consumer process looks for ends of batches, more than once
ALTER = ("queuetopic", "alter", "orders", "--no-input")


def alter_beside(course: Course, old: Side, wanted: str) -> ManageCommand:
    """Alter the topic while an earlier consumer and publisher run; return the publisher when it has ended."""
    old.migrate()
    old_consumer, old_publisher = old.consume(), old.publish("x")
    course.wait_for_more("x", "old", old_consumer)
    course.new.migrate()
    new_consumer, new_publisher = course.new.consume(), course.new.publish("y")

    alter = course.new.manage(*ALTER, *wanted.split())
    alter.wait_for_line("consumers of an older version to end")
    course.wait_for_more("x", "new", alter, new_consumer)
    course.wait_for_more("y", "old", alter, old_consumer)
    end(old_consumer)
    assert alter.wait(120) == 0, alter.output
    assert old_publisher.wait(120) == 1, old_publisher.output
    course.wait_for_more("y", "new", new_consumer, new_publisher)

    again = course.new.publish("x")  # restarted
    course.wait_for_more("x", "new", new_consumer, again)
    end(again, new_publisher)
    course.check("x", "y", commands=(new_consumer,))
    end(new_consumer)
    assert "Traceback" not in old_consumer.output + new_consumer.output
    return old_publisher


def test_other_shards(sharded_course: Course, earlier: Earlier) -> None:
    old = sharded_course.old(earlier("0034_reshard"))
    publisher = alter_beside(sharded_course, old, "--shards=a,b")
    assert "restart this process" in publisher.output


def test_other_partitions(course: Course, earlier: Earlier) -> None:
    publisher = alter_beside(course, course.old(earlier("0031_epochs")), "--partitions=6")
    assert re.search("restart this publisher|cannot be null", publisher.output)


def test_batches_over_shards(sharded_course: Course, earlier: Earlier) -> None:
    """Earlier consumers handle their members, and end none of them."""
    course, members = sharded_course, 8
    old = course.old(earlier("0033_batches_over_shards"))
    old.migrate()
    old_consumer = old.consume()
    course.new.migrate()
    batch = course.new.batch("z", members)
    wait_until(lambda: len(course.handled("z", "old")) == members, message=lambda: old_consumer.output)
    time.sleep(LOOKS)
    assert batch.returncode is None, batch.output
    new_consumer = course.new.consume()
    end(old_consumer)
    batch.wait_for_line(f"succeeded: {members} of {members}", 120)
    end(new_consumer)
    assert course.handled("z") == {f"z{number}": [0] for number in range(members)}
