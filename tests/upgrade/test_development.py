"""A database of a development version: `migrate` refuses it, and says how to make the tables anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.upgrade.sides import Course, end

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "state",
    [pytest.param("0001_initial", marks=pytest.mark.once), ""],
    ids=["its first migration", "its last migration"],
)
def test_it_is_refused_until_its_tables_are_made_anew(course: Course, of_development: Path, state: str) -> None:
    old, new = course.old(of_development), course.new
    command = old.manage("migrate", "sqlqueue", *state.split())
    assert command.wait(300) == 0, command.output
    if not state:
        end(old.publish("x"))

    refused = new.manage("migrate")
    assert refused.wait(60) == 1
    assert "those of a development version of sqlqueue" in refused.output
    if not state:
        consumers = new.manage("runconsumers")
        assert consumers.wait(60) == 1
        assert "sqlqueue.E052" in consumers.output
    course.execute(*re.findall(r"(?m)^((?:DROP|DELETE) .*);$", refused.output))

    new.migrate()
    publisher, consumer = new.publish("y"), new.consume()
    course.wait_for_more("y", "new", publisher, consumer)
    end(publisher)
    course.check("y", commands=(consumer,))
    end(consumer)
    assert not course.handled("x")
