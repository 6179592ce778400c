"""A consumer's connections are led to a replica that lags without a word, for one read or for good: nothing is lost.

Once it is promoted, it knows the same owner with the same token, and gives the offsets of the messages that it lacks to
others.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from django.core.management import call_command
from django.db import connection, connections

from sqlqueue import publish
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.database.tables import labels
from sqlqueue.exceptions import LeaseLost
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import Offset
from tests.blind import make_blind
from tests.processes import wait_until
from tests.servers.lagging import PAIRS, Pair, query
from tests.servers.rerouting import ReroutingProxy
from tests.subscribers import consumer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "postgresql")]


class Follower:
    """A process with one thread: while it handles a message of `NAME-gate`, one of `NAME-atomic` waits behind it."""

    def __init__(self, name: str) -> None:
        self.name, self.handled = name, list[str]()
        self.started, self.goes_on = threading.Event(), threading.Event()
        gate = consumer(f"{name}-gate", self.wait)
        atomic = consumer(f"{name}-atomic", self.note, atomic=True)
        read = consumer(f"{name}-read", self.note)
        self.subscriber = Subscriber([gate, atomic, read], name=name, threads=1, background_tasks=False)

    def wait(self, delivery: Delivery) -> None:
        """Handle a message of the gate."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        self.started.set()
        assert self.goes_on.wait(60)
        self.handled.append(delivery.id)

    def note(self, delivery: Delivery) -> None:
        """Handle another message."""
        self.handled.append(delivery.id)

    def step(self) -> None:
        """Run one iteration."""
        self.subscriber.run_once_guarded()

    def owns_all(self) -> bool:
        """Tell, after an iteration, whether it owns partitions of all topics."""
        self.step()
        return all(subscription.assigned for subscription in self.subscriber.subscriptions)

    def has_started(self) -> bool:
        """Tell, after an iteration, whether the handler of the gate runs."""
        self.step()
        return self.started.is_set()

    def holds_both(self) -> bool:
        """Tell, after an iteration, whether both messages are in flight."""
        self.step()
        return len(self.subscriber.in_flight) == 2

    def looks_between(self, do: Callable[[], object]) -> None:
        """Run one iteration in which something is done between the look at the horizon and the reads that use it."""
        reader = self.subscriber.reader
        probe, before = reader.log_end.horizon.probe, reader.log_end.horizon.value

        def probed(highest: int) -> int:
            if probe(highest) > before:
                do()
            return reader.log_end.horizon.value

        reader.log_end.horizon.probe = probed  # type: ignore[method-assign]
        wait_until(lambda: self.step() or reader.log_end.horizon.value > before)
        if reader.log_end.horizon.probe is probed:
            reader.log_end.horizon.probe = probe  # type: ignore[method-assign]

    def settles_before_it_reads(self) -> None:
        """Let both handlers end, and settle what they report, as an iteration does that has just read."""
        dispatcher, now = self.subscriber.dispatcher, self.subscriber.clock()
        self.goes_on.set()
        wait_until(lambda: len(self.subscriber.in_flight.reports) == 2)
        dispatcher.apply_reports(now)
        with suppress(LeaseLost):
            dispatcher.advance(self.subscriber.ownership.assigned_partitions(), now, dispatch=False)

    def rests(self) -> bool:
        """Tell, after an iteration, whether nothing is in flight and nothing is to be read."""
        self.step()
        return self.subscriber.idle


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Servers without a database of the tests, which `default` leads to through a proxy."""
    vendor = "mariadb" if connection.vendor == "mysql" else connection.vendor
    pair = PAIRS[vendor]()
    try:
        yield pair
    finally:
        pair.close()


@pytest.fixture
def proxy(pair: Pair) -> Iterator[ReroutingProxy]:
    """The proxy before the primary; its database has the tables."""
    settings = connection.settings_dict
    query(pair.primary, "CREATE DATABASE rerouted")
    before = {name: settings[name] for name in ("HOST", "PORT", "NAME", "USER", "PASSWORD")}
    connections.close_all()
    with ReroutingProxy(pair.primary.port, connection.vendor) as proxy:
        mine = {"HOST": "127.0.0.1", "PORT": str(proxy.port), "NAME": "rerouted"}
        settings.update(mine, USER=pair.primary.superuser, PASSWORD="")
        forget_topics()
        try:
            for label in labels():
                call_command("migrate", label, verbosity=0)
            yield proxy
        finally:
            connections.close_all()
            settings.update(before)
            forget_topics()


def publish_to(followers: list[Follower], kind: str, id: str) -> list[int]:
    """Publish a message to each; return the offsets."""
    return [publish(f"{one.name}-{kind}", {}, key="k", id=f"{id}-{kind}").offset for one in followers]


def test_nothing_is_lost_and_without_the_servers_identity_it_is(pair: Pair, proxy: ReroutingProxy) -> None:
    fenced, blind = followers = [Follower("fenced"), Follower("blind")]
    make_blind(blind.subscriber)
    for one in followers:
        one.subscriber.start()
        wait_until(one.owns_all)
    pair.replicate()
    read_once_from_the_replica(fenced, blind, pair, proxy)
    settle_on_the_promoted_replica(fenced, blind, pair, proxy)
    for one in followers:
        one.subscriber.close()


def read_once_from_the_replica(fenced: Follower, blind: Follower, pair: Pair, proxy: ReroutingProxy) -> None:
    for one in (fenced, blind):
        publish_to([one], "read", "first")
        one.looks_between(lambda: proxy.lead_to(pair.replica.port))
        proxy.lead_to(pair.primary.port)
    wait_until(lambda: fenced.rests() and fenced.handled == ["first-read"])
    wait_until(blind.rests)
    assert not blind.handled, "what is to be shown here is its loss"


def settle_on_the_promoted_replica(fenced: Follower, blind: Follower, pair: Pair, proxy: ReroutingProxy) -> None:
    followers = [fenced, blind]
    old = publish_to(followers, "gate", "old")
    for one in followers:
        wait_until(one.has_started)
    old += publish_to(followers, "atomic", "old")
    for one in followers:
        wait_until(one.holds_both)

    pair.promote()
    assert proxy.lead_to(pair.replica.port) >= 3, "the connections of the loops and of both handlers"
    while publish("other", {}).offset < min(old) - 1:
        pass
    new = publish_to(followers, "gate", "new") + publish_to(followers, "atomic", "new")
    assert new == old, "the new server gives the offsets again"
    for one in followers:
        one.settles_before_it_reads()
    wait_until(lambda: fenced.rests() and {"new-gate", "new-atomic"} <= set(fenced.handled))
    wait_until(blind.rests)
    assert fenced.handled.count("new-gate") == fenced.handled.count("new-atomic") == 1
    assert not {"new-gate", "new-atomic"} & set(blind.handled), "what is to be shown here is their loss"
    passed = Offset.objects.filter(topic__in=["blind-gate", "blind-atomic"], position__gte=min(new))
    assert passed.count() == 2, "positions have passed messages that no handler has seen"
