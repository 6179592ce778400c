"""One read of the database serves all requests for a while, whatever came of it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError

from sqlqueue.database.log import Log
from sqlqueue.exceptions import Unreachable
from sqlqueue.stats.cached import Cached


class Look:
    """Counts the looks, and gives their number; or fails as a database does."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, log: Log) -> int:
        self.count += 1
        assert self.may_end.wait(60)
        if self.fails:
            raise OperationalError(2013, "Lost connection")
        return self.count


@pytest.fixture
def look() -> Look:
    return Look()


def test_it_is_asked_once_in_an_interval(look: Look, settings) -> None:
    settings.SQLQUEUE = {"STATS_INTERVAL": 3600}
    recent = Cached(look)
    assert [recent.get() for _ in range(5)] == [1] * 5
    recent.forget()
    assert recent.get() == 2
    settings.SQLQUEUE = {"STATS_INTERVAL": 0}
    assert [recent.get() for _ in range(3)] == [3, 4, 5]


def test_those_who_come_meanwhile_wait_for_the_same_answer(look: Look, settings) -> None:
    settings.SQLQUEUE = {"STATS_INTERVAL": 3600}
    recent = Cached(look)
    look.may_end.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(recent.get) for _ in range(8)]
        look.may_end.set()
        assert [each.result(60) for each in asked] == [1] * 8


def test_a_database_that_is_away_is_not_asked_more_often(look: Look, settings) -> None:
    settings.SQLQUEUE = {"STATS_INTERVAL": 3600}
    recent = Cached(look)
    look.fails = True
    for _ in range(5):
        with pytest.raises(Unreachable, match="does not answer"):
            recent.get()
    assert look.count == 1
    look.fails = False
    recent.forget()
    assert recent.get() == 2


def test_a_mistake_is_no_database_that_is_away(settings) -> None:
    settings.SQLQUEUE = {"STATS_INTERVAL": 3600}

    def wrong(log: Log) -> int:
        raise KeyError("mistake")

    recent = Cached(wrong)
    for _ in range(2):
        with pytest.raises(KeyError):
            recent.get()
