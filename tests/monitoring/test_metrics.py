"""The metrics: what is counted is what happened, and the gauges are what the tables say."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from sqlqueue import NewMessage, Postpone, Reject, Retry, publish, publish_many
from sqlqueue.log.ticks import publish_due
from sqlqueue.models import PeriodicSchedule
from sqlqueue.monitoring import metrics
from sqlqueue.stats.cached import recent_survey
from tests.consuming import QUICK, Consuming
from tests.log.test_ticks import declared, last_due, schedule, set_back
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)
Labels = dict[str, str]


class Change:
    """How much a sample of the registry has grown since the test began."""

    def __init__(self) -> None:
        self._before = samples()

    def __call__(self, name: str, **labels: str) -> float:
        key = (name, *sorted(labels.items()))
        return samples().get(key, 0.0) - self._before.get(key, 0.0)


def samples() -> dict[tuple, float]:
    return {
        (sample.name, *sorted((label, value) for label, value in sample.labels.items() if value)): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
    }


@pytest.fixture
def change(consuming: Consuming, settings) -> Iterator[Change]:
    settings.SQLQUEUE = QUICK | {"STATS_INTERVAL": 0}
    yield Change()
    recent_survey.forget()


def test_what_is_published_is_counted_once_it_is_there(change: Change) -> None:
    publish("t", 1, id="a")
    publish("t", 1, id="a")
    publish_many("t", [NewMessage(n, key="k") for n in range(10)])
    publish("t", 1, delay=3600)
    assert change("sqlqueue_published_total", topic="t") == 11


def test_missed_late_and_refused_ticks_are_counted(change: Change) -> None:
    digests, due = declared(schedule(every=60), schedule("bad")), last_due(60)
    set_back("job", due - timedelta(hours=1), attended=False)
    set_back("bad", due)
    PeriodicSchedule.objects.filter(name="bad").update(definition="{}")
    publish_due(LOG, digests)
    assert change("sqlqueue_missed_ticks_total", topic="periodic") == 1
    assert change("sqlqueue_tick_lateness_seconds_count", topic="periodic") == 1
    assert 0 < change("sqlqueue_tick_lateness_seconds_sum", topic="periodic") < 120
    assert change("sqlqueue_refused_ticks_total") == 1


def test_what_becomes_of_deliveries_is_counted(change: Change, consuming: Consuming) -> None:
    @consuming.consumer("t", group="g", max_attempts=2, backoff=0)
    def handle(delivery: Any) -> None:
        if delivery.attempt == 1 and delivery.payload == "retry":
            raise Retry("once")
        if delivery.payload == "reject":
            raise Reject("no")
        if delivery.payload == "postpone":
            raise Postpone(delay=3600)

    for payload in ("good", "good", "retry", "reject", "postpone"):
        publish("t", payload)
    consuming.drain()
    labels = {"topic": "t", "group": "g"}
    outcomes = {"acked": 3, "retried": 1, "dead": 1, "postponed": 1}
    assert {name: change("sqlqueue_settled_total", outcome=name, **labels) for name in outcomes} == outcomes
    assert change("sqlqueue_delivered_total", **labels) == 6
    assert change("sqlqueue_handler_seconds_count", **labels) == 6
    assert change("sqlqueue_latency_seconds_count", **labels) == 4  # acked and dead ones


def test_a_batch_is_one_call_of_its_handler(change: Change, consuming: Consuming) -> None:
    calls: list[int] = []
    consuming.consumer("t", lambda deliveries: calls.append(len(deliveries)), group="b", batch=True, batch_size=50)
    publish_many("t", range(200))
    consuming.drain()
    labels = {"topic": "t", "group": "b"}
    assert sum(calls) == change("sqlqueue_delivered_total", **labels) == 200
    assert change("sqlqueue_settled_total", outcome="acked", **labels) == 200
    assert change("sqlqueue_handler_seconds_count", **labels) == len(calls)
    assert change("sqlqueue_latency_seconds_count", **labels) == 200


def test_the_latency_is_by_the_databases_clock(change: Change, consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None, group="l")
    publish_many("t", range(20))
    consuming.drain()
    labels = {"topic": "t", "group": "l"}
    assert change("sqlqueue_latency_seconds_count", **labels) == 20
    assert 0 < change("sqlqueue_latency_seconds_sum", **labels) < 20 * 60


def test_leases_are_counted_by_partition(change: Change, consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None, group="g")
    publish("t", 1)
    consuming.drain()
    for what in ("acquired", "released"):
        assert change("sqlqueue_lease_changes_total", topic="t", group="g", change=what) == 4


class TestGauges:
    @pytest.fixture
    def backlog(self, change: Change, consuming: Consuming) -> None:
        @consuming.consumer("gauged", group="g", max_attempts=1)
        def handle(delivery: Any) -> None:
            raise ValueError

        publish("gauged", 0)
        consuming.drain()
        publish_many("gauged", range(7))
        publish("gauged", 0, delay=3600)

    def test_they_are_what_the_tables_say(self, backlog: None) -> None:
        found = samples()

        def of(name: str, **labels: str) -> float:
            return found[(f"sqlqueue_{name}", *sorted(labels.items()))]

        labels = {"topic": "gauged", "group": "g"}
        names = ("lag_messages", "dead_letters", "group_away", "group_subscribers")
        assert [of(name, **labels) for name in names] == [7, 1, 1, 0]
        assert of("oldest_age_seconds", **labels) > 0
        assert of("scheduled_messages", topic="gauged") == 1
        assert of("database_up") == 1

    def test_they_cost_one_survey_in_an_interval(self, backlog: None, settings) -> None:
        settings.SQLQUEUE = QUICK | {"STATS_INTERVAL": 3600}
        with CaptureQueriesContext(connection) as first:
            samples()
        with CaptureQueriesContext(connection) as others:
            for _ in range(20):
                samples()
        assert (len(first) > 0, len(others)) == (True, 0)

    def test_to_register_them_asks_no_database(self, change: Change) -> None:
        from sqlqueue.monitoring.gauges import StatsCollector

        with CaptureQueriesContext(connection) as statements:
            CollectorRegistry().register(StatsCollector())
        assert len(statements) == 0


def test_django_prometheus_exports_them(change: Change, consuming: Consuming) -> None:
    publish("exported", 1)
    text = Client().get("/metrics").content.decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"sqlqueue_published", "sqlqueue_lag_messages", "sqlqueue_handler_seconds"} <= names
    assert 'sqlqueue_published_total{database="",topic="exported"}' in text


@pytest.mark.parametrize("counter", [metrics.REFUSED, metrics.REFUSED_TICKS, metrics.RESULTS_COLLECTED])
def test_a_counter_of_a_database_is_at_0_before_its_first_event(counter: Counter) -> None:
    counter.clear()
    metrics.connect_receivers()
    samples = [one for family in counter.collect() for one in family.samples if one.name.endswith("_total")]
    assert [(one.labels, one.value) for one in samples] == [({"database": ""}, 0)]


@pytest.mark.parametrize(
    "values", [[], [0.0], [0.001, 0.0011, 5], [1e9], [-1.0, 0.3, 0.3, 0.3, 7200, 7200.1], [n / 7 for n in range(200)]]
)
def test_many_observations_are_the_same_as_each(values: list[float]) -> None:
    from sqlqueue.monitoring.metrics import BUCKETS, BulkHistogram

    together, one_by_one = CollectorRegistry(), CollectorRegistry()
    BulkHistogram("h", "x", buckets=BUCKETS, registry=together).observe_many(values)
    each = Histogram("h", "x", buckets=BUCKETS, registry=one_by_one)
    for value in values:
        each.observe(value)

    def told(registry: CollectorRegistry) -> dict[tuple, float]:
        return {
            (sample.name, sample.labels.get("le", "")): pytest.approx(sample.value)
            for family in registry.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        }

    assert told(together) == told(one_by_one)
