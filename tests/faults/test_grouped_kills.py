"""Processes are killed in the middle of transactions that several handlers share: every effect is there once, and each
key's are in its order."""

import os
import signal
from collections import Counter, defaultdict

import pytest
from django.db import transaction

from sqlqueue import NewMessage, publish_many
from tests.app.crash_handlers import HANDLED
from tests.app.models import Effect
from tests.consumer_processes import GROUP, Consumers, wait_for_shares
from tests.processes import wait_until
from tests.progress import dead_letter_offsets, wait_until_settled

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database("mariadb", "mysql", "postgresql"),
]

TOPIC = "grouped"
KEYS, KILLS, EACH = 7, 4, 150


def test_effects_are_there_once_and_in_order_through_kills(consumers: Consumers) -> None:
    command = consumers.start(TOPIC, processes=2, threads=2)
    published = 0
    for kill in range(KILLS):
        subscribers = wait_for_shares(TOPIC, 2)
        victim = subscribers[sorted(subscribers)[kill % 2]]
        with transaction.atomic():
            publish_many(TOPIC, [message(consumers, published + number) for number in range(EACH)])
        published += EACH
        begun = sum(consumers.noted("begin").values())
        wait_until(lambda begun=begun: sum(consumers.noted("begin").values()) >= begun + 30)
        os.kill(victim, signal.SIGKILL)
        command.wait_for_line(f"event=process_died child={victim} .*exit=-9")
    wait_until_settled(TOPIC, GROUP)
    command.terminate()
    assert command.wait() == 0, command.output

    done = [
        value.split()[0] for value in Effect.objects.filter(name=HANDLED).order_by("id").values_list("value", flat=True)
    ]
    assert Counter(done) == Counter(str(number) for number in range(published))
    assert not dead_letter_offsets(TOPIC, GROUP)
    by_key: dict[int, list[int]] = defaultdict(list)
    for name in done:
        by_key[int(name) % KEYS].append(int(name))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    attempts = Counter(attempt for _, attempt in consumers.noted("begin").elements())
    assert set(attempts) <= set(range(1, KILLS + 3))
    assert sum(consumers.noted("begin").values()) > published, "no transaction was rolled back"


def message(consumers: Consumers, number: int) -> NewMessage:
    """Some fail at their first attempt, in the middle of a transaction."""
    then = {"then": "fail"} if number % 40 == 17 else {}
    return NewMessage({"notes": str(consumers.notes), "sleep": 0.005, **then}, key=f"k{number % KEYS}", id=str(number))
