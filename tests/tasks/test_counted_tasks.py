"""What a task costs beyond its message: its state is stored with it, at the start and at the end of each attempt.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from sqlqueue.tasks.runner import run_task
from tests.counting import Cost, Counter, counted
from tests.steady import Steady, settle
from tests.tasks.declared import samples

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = 10


def run_tasks(steady: Steady, task: Any, *arguments: Any) -> Counter:
    task.enqueue(*arguments)
    subscriber = steady.start(run_task, ["tasks"], topic="tasks.default", ordering="none", max_attempts=None)
    for _ in range(TASKS):
        task.enqueue(*arguments)
    counter = Counter()
    settle(subscriber, counter)
    with connection.execute_wrapper(counter):
        subscriber.run_once()
    return counter


def test_a_task_is_enqueued(steady: Steady) -> None:
    samples.note.enqueue()
    with counted() as counter:
        samples.note.enqueue()
    counter.check(Cost(0, 2, 2))


def test_ten_tasks_run(steady: Steady) -> None:
    run_tasks(steady, samples.note).check(Cost(11, 23, 23))


def test_ten_tasks_fail(steady: Steady) -> None:
    run_tasks(steady, samples.fail, "no").check(Cost(21, 37, 43))


def test_a_result_is_read(steady: Steady) -> None:
    result = samples.note.enqueue()
    with counted() as counter:
        result.refresh()
    counter.check(Cost(1, 0, 0))
