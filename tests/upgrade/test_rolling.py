"""A rolling upgrade: processes of an earlier sqlqueue and of the present one run side by side on one database, in the
order of docs/operations/upgrade.md. Nothing is lost, nothing is handled twice, every key is in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.sides import Course, end

pytestmark = pytest.mark.timeout(900)


@pytest.mark.long
def test_publishers_and_consumers_go_over_one_after_another(course: Course, earlier: Path) -> None:
    old, new = course.old(earlier), course.new
    old.migrate()
    old_consumer, old_publisher = old.consume(), old.publish("x")
    course.wait_for_more("x", "old", old_consumer)

    new.migrate()
    new_consumer = new.consume()
    course.wait_for_more("x", "old", old_consumer)
    course.wait_for_more("x", "new", old_consumer, new_consumer)
    new_publisher = new.publish("y")
    course.wait_for_more("y", "old", old_consumer, new_consumer)
    course.wait_for_more("y", "new", old_consumer, new_consumer)

    end(old_consumer)
    course.wait_for_more("x", "new", new_consumer)
    end(old_publisher)
    old_publisher = new.publish("x")
    course.wait_for_more("x", "new", new_consumer)
    end(old_publisher, new_publisher)
    course.check("x", "y", commands=(new_consumer,))
    end(new_consumer)
    assert "Traceback" not in old_consumer.output + new_consumer.output


@pytest.mark.long
def test_the_way_back_leads_over_the_new_tables(course: Course, earlier: Path) -> None:
    """Processes of the earlier version start on them, and go on with what those of the present one have left."""
    old, new = course.old(earlier), course.new
    old.migrate()
    new.migrate()
    new_consumer, new_publisher = new.consume(), new.publish("x")
    course.wait_for_more("x", "new", new_consumer)
    end(new_consumer)
    old_consumer = old.consume()
    course.wait_for_more("x", "old", old_consumer)
    end(new_publisher)
    old_publisher = old.publish("x")
    course.wait_for_more("x", "old", old_consumer)
    end(old_publisher)
    course.check("x", commands=(old_consumer,))
    end(old_consumer)
    assert "Traceback" not in old_consumer.output + new_consumer.output


@pytest.mark.once
def test_what_an_earlier_publisher_sends_while_tables_are_migrated_is_consumed(course: Course, earlier: Path) -> None:
    old, new = course.old(earlier), course.new
    old.migrate()
    publisher = old.publish("x")
    new.migrate()
    end(publisher)
    drain = new.manage("runconsumers", "--processes=0", "--threads=1", "--drain")
    assert drain.wait(120) == 0, drain.output
    course.check("x", commands=(drain,))
