"""Shares of a group's limits in the tables: never more than the limit together, whoever takes at once or has died."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connections

from sqlqueue import publish
from sqlqueue.conf import settings as options
from sqlqueue.core.flow import checked_flow
from sqlqueue.database import clock
from sqlqueue.database.log import Log
from sqlqueue.leases.limit_shares import Need, Share, Times, leave, take
from sqlqueue.log.groups import declare_flows, register, remove
from sqlqueue.models import ConsumerGroup, LimitShare

pytestmark = pytest.mark.django_db(transaction=True)
TIMES = Times(ahead=10.0, yield_after=30.0, lasts=60.0)


@pytest.fixture
def limits() -> Callable[..., None]:
    """Let the group have these limits."""
    publish("calls", 1)
    register(Log.of(options.DATABASE), "partners", "calls")

    def have(**given: object) -> None:
        declare_flows(Log.of(options.DATABASE), {("partners", "calls"): checked_flow(given, [])})

    return have


def taken(
    subscriber: str, *, demand: float = 0.0, unused: int = 0, running: int = 0, wanted: int = 0, held: bool = True
) -> Share:
    need = Need(demand, unused, running, wanted, held)
    share = take(Log.of(options.DATABASE), subscriber, "partners", "calls", need, TIMES)
    assert share is not None
    return share


def die(subscriber: str) -> None:
    """Let a process's lease of its share end."""
    ended = clock.now(Log.of(options.DATABASE)) - timedelta(seconds=1)
    assert LimitShare.objects.filter(subscriber=subscriber).update(expires_at=ended)


def test_the_slots_of_a_process_that_died_are_missing_until_its_lease_ends(limits: Callable[..., None]) -> None:
    limits(concurrency_limit=4)
    assert taken("a", wanted=4).slots == 4
    assert taken("b", wanted=4).slots == 0
    die("a")
    assert taken("b", wanted=4).slots == 4
    assert list(LimitShare.objects.values_list("subscriber", flat=True)) == ["b"]


def test_a_process_whose_lease_has_ended_begins_anew_with_what_the_others_have_left(
    limits: Callable[..., None],
) -> None:
    limits(concurrency_limit=4)
    assert taken("a", wanted=4).slots == 4
    die("a")
    assert taken("b", wanted=3).slots == 3
    assert taken("a", wanted=4).slots == 1


def test_slots_go_to_who_needs_them_and_come_back_at_the_end_of_a_process(limits: Callable[..., None]) -> None:
    limits(concurrency_limit=4)
    assert taken("a", wanted=4).slots == 4
    assert taken("b", wanted=4).slots == 0
    assert taken("a", running=3, wanted=4).slots == 3  # its fair share is two, but these run
    assert taken("b", wanted=4).slots == 1
    assert taken("a", running=1, wanted=4).slots == 2
    assert taken("b", running=1, wanted=4).slots == 2
    leave(Log.of(options.DATABASE), "a")
    assert taken("b", running=1, wanted=4).slots == 4


def test_tokens_are_drawn_ahead_and_those_that_were_not_used_are_given_back(limits: Callable[..., None]) -> None:
    limits(rate_limit="1/d")
    ConsumerGroup.objects.update(tokens=1.0, tokens_at=clock.now(Log.of(options.DATABASE)))
    assert taken("a", demand=5.0).tokens == 1
    assert taken("b", demand=5.0).tokens == 0
    assert taken("a", unused=1, held=False).tokens == 0
    assert taken("b", demand=5.0).tokens == 1


def test_a_bucket_that_was_full_for_long_holds_what_a_draw_takes(limits: Callable[..., None]) -> None:
    limits(rate_limit="10/s")
    ConsumerGroup.objects.update(tokens=0.0, tokens_at=clock.now(Log.of(options.DATABASE)) - timedelta(days=1))
    tokens = [taken(name, demand=10.0).tokens for name in "abc"]
    assert 100 <= sum(tokens) <= 101 + 10 * 60  # whatever time the test has taken


@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_that_was_set_gives_no_more_than_the_bucket_holds(limits: Callable[..., None], days: int) -> None:
    limits(rate_limit="1/d")
    ConsumerGroup.objects.update(tokens=0.0, tokens_at=clock.now(Log.of(options.DATABASE)) + timedelta(days=days))
    assert taken("a", demand=5.0).tokens == 1
    assert taken("a", demand=5.0).tokens == 0


def test_a_process_does_not_wait_for_longer_because_the_clock_was_set_back(limits: Callable[..., None]) -> None:
    limits(concurrency_limit=1)
    assert taken("a", wanted=1).slots == 1
    assert taken("b", wanted=1).slots == 0
    shares = LimitShare.objects.filter(subscriber="b")
    shares.update(waits_since=clock.now(Log.of(options.DATABASE)) + timedelta(days=1))
    assert taken("b", wanted=1).slots == 0
    assert shares.get().waits_since <= clock.now(Log.of(options.DATABASE))


def test_processes_that_take_at_once_never_have_more_slots_than_there_are(limits: Callable[..., None]) -> None:
    limits(concurrency_limit=5)
    most: list[int] = []
    ready = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            ready.wait()
            for turn in range(8):
                taken(f"p{number}", wanted=(number + turn) % 5)
                most.append(sum(LimitShare.objects.values_list("slots", flat=True)))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 48
    assert max(most) <= 5


@pytest.mark.once
def test_a_group_that_was_removed_has_no_shares(limits: Callable[..., None]) -> None:
    limits(concurrency_limit=4)
    taken("a", wanted=4)
    remove(Log.of(options.DATABASE), "partners", "calls")
    assert not LimitShare.objects.exists()
    assert take(Log.of(options.DATABASE), "a", "partners", "calls", Need(0.0, 0, 0, 4, True), TIMES) is None
