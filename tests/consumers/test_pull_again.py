"""subscribe() again and again in one process, as a web server does for months."""

import gc
import weakref
from collections import Counter

import pytest

from sqlqueue import publish, subscribe
from tests.consuming import Consuming

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

ROUNDS = 30


def objects() -> Counter[type]:
    """Count what is alive by its type, but for weak references: a connection to SQLite keeps up to 200 to cursors that
    are gone."""
    gc.collect()
    return Counter(type(one) for one in gc.get_objects() if type(one) is not weakref.ref)


def test_it_leaves_nothing_behind_that_grows_with_each(consuming: Consuming) -> None:
    def receive() -> None:
        publish("t", 1)
        with subscribe("t", timeout=5) as deliveries:
            next(iter(deliveries)).ack()

    for _ in range(3):  # what is made once, and cached
        receive()
    before = objects()
    for _ in range(ROUNDS):
        receive()
    assert {kind for kind, more in (objects() - before).items() if more >= ROUNDS} == set()
