"""One id, many publishers, and the scheduler beside them: what each is told is what has happened."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from sqlqueue import cancel, publish
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC, KEY = "named", "a"
Told = list[tuple[str, Any]]


@pytest.fixture(autouse=True)
def a_topic() -> None:
    publish(TOPIC, "so that the topic is there")
    Message.objects.all().delete()


class Side:
    """Runs functions side by side, each on a connection of its own and without a transaction around it; `behind` is
    repeated until they have ended."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def run(self, *functions: Callable[[], None], behind: Callable[[], object]) -> None:
        with ThreadPoolExecutor(len(functions) + 1) as pool:
            going = pool.submit(self._closing, lambda: self._repeat(behind))
            tasks = [pool.submit(self._closing, function) for function in functions]
            try:
                for task in tasks:
                    task.result(60)
            finally:
                self.over.set()
            going.result(60)

    def _repeat(self, function: Callable[[], object]) -> None:
        while not self.over.is_set():
            function()
        function()

    def _closing(self, function: Callable[[], None]) -> None:
        try:
            function()
        finally:
            connections.close_all()


def the_only(id: str) -> tuple[list[Any], list[Any]]:
    """Return the payloads under an id, in the log and in the schedule."""
    log = Message.objects.filter(message_id=id).values_list("payload", flat=True)
    return list(log), list(ScheduledMessage.objects.filter(message_id=id).values_list("payload", flat=True))


@pytest.mark.parametrize("options", [{}, {"delay": 60}], ids=["now", "later"])
@pytest.mark.parametrize("choice", ["ignore", "replace"])
def test_of_many_that_offer_an_id_one_creates_it(options: Any, choice: str) -> None:
    side, told = Side(), Counter[tuple[int, str]]()
    start = threading.Barrier(6)

    def offer() -> None:
        for number in range(8):
            start.wait(60)
            told[number, publish(TOPIC, 1, key=KEY, id=f"{number}", on_conflict=choice, **options).status] += 1

    side.run(*[offer] * 6, behind=lambda: side.over.wait(0.01))
    other = "updated" if options and choice == "replace" else "ignored"
    assert told == {(number, status): count for number in range(8) for status, count in (("created", 1), (other, 5))}
    assert Message.objects.count() + ScheduledMessage.objects.count() == 8


def test_what_was_replaced_last_is_what_enters_the_log() -> None:
    """The scheduler moves each while it is being replaced: `updated` is never told of a payload that was lost."""
    side, last = Side(), dict[str, int]()

    def replace() -> None:
        for id in map(str, range(40)):
            for number in range(1_000):
                if publish(TOPIC, number, key=KEY, id=id, delay=0, on_conflict="replace").status == "ignored":
                    break
                last[id] = number

    side.run(replace, behind=lambda: move_due(LOG))
    assert last
    assert {id: the_only(id) for id in last} == {id: ([number], []) for id, number in last.items()}


def test_what_was_cancelled_in_time_is_never_delivered_and_everything_else_is() -> None:
    side, in_time = Side(), dict[str, list[bool]]()
    start = threading.Barrier(3)

    def schedule() -> None:
        for id in map(str, range(60)):
            assert publish(TOPIC, id, key=KEY, id=id, delay=0).created
            start.wait(60)
            start.wait(60)

    def cancel_it() -> None:
        for id in map(str, range(60)):
            start.wait(60)
            in_time.setdefault(id, []).append(cancel(TOPIC, key=KEY, id=id))
            start.wait(60)

    side.run(schedule, cancel_it, cancel_it, behind=lambda: move_due(LOG))
    for id, answers in in_time.items():
        assert answers.count(True) <= 1, f"two have cancelled {id}"
        assert the_only(id) == (([], []) if any(answers) else ([id], [])), id
    assert len(in_time) == 60


def test_each_life_of_an_id_begins_with_created_and_ends_with_a_cancellation_or_in_the_log() -> None:
    side, told = Side(), Counter[tuple[str, str]]()
    ids = [str(number) for number in range(6)]

    def adverse() -> None:
        chance = random.Random(threading.get_ident())
        for number in range(40):
            id = chance.choice(ids)
            if chance.random() < 0.4:
                told[id, f"cancelled {cancel(TOPIC, key=KEY, id=id)}"] += 1
                continue
            choice, delay = chance.choice(["ignore", "replace"]), chance.choice([0, 60, 60])
            told[id, publish(TOPIC, number, key=KEY, id=id, delay=delay, on_conflict=choice).status] += 1

    side.run(*[adverse] * 4, behind=lambda: (move_due(LOG), side.over.wait(0.005)))
    for id in ids:
        log, scheduled = the_only(id)
        assert len(log) + len(scheduled) <= 1
        assert told[id, "created"] == told[id, "cancelled True"] + len(log) + len(scheduled), (id, told)
