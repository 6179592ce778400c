"""Stats as gauges for Prometheus; read when Prometheus scrapes, at most once in STATS_INTERVAL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from sqlqueue.core.effects import figures
from sqlqueue.database.log import Log, all_logs
from sqlqueue.exceptions import ConfigurationError, Unreachable
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.survey import Survey
from sqlqueue.stats.topics import TopicSurvey

OF_ALL: dict[str, tuple[str, Callable[[Survey], float]]] = {
    "sqlqueue_subscribers": ("Consumer processes alive.", lambda s: s.subscribers),
    "sqlqueue_dead_processes": (
        "Consumer processes that died, and no successor of which has lived a minute.",
        lambda s: len(s.deaths),
    ),
    "sqlqueue_heartbeat_age_seconds": (
        "For how long the consumer process that is late has written no heartbeat; 0 while none is late.",
        lambda s: s.late[0].seconds if s.late else 0.0,
    ),
    "sqlqueue_failing_tasks": (
        "Consumer processes in which a background task, the loop or a transaction fails again and again.",
        lambda s: len(s.failing),
    ),
    "sqlqueue_highest_offset": ("The last message's offset.", lambda s: s.highest_offset),
    "sqlqueue_horizon_lag_messages": (
        "Offsets that an open transaction of a publisher holds above the horizon.",
        lambda s: s.horizon_lag,
    ),
    "sqlqueue_horizon_age_seconds": ("For how long it has held the first of them.", lambda s: s.horizon_age),
    "sqlqueue_survey_timestamp_seconds": (
        "When these gauges were taken, by the database's clock.",
        lambda s: s.taken_at.timestamp(),
    ),
}
OF_TOPIC: dict[str, tuple[str, Callable[[TopicSurvey], float]]] = {
    "sqlqueue_topic_partitions": ("Partitions of the topic.", lambda t: t.partitions),
    "sqlqueue_topic_paused": ("1 while the topic is paused.", lambda t: t.paused),
    "sqlqueue_scheduled_messages": ("Messages that wait for their time.", lambda t: t.scheduled),
    "sqlqueue_overdue_messages": (
        "Messages that were due more than a minute ago, and have not been moved into the log.",
        lambda t: t.overdue,
    ),
    "sqlqueue_refused_messages": ("Scheduled messages that cannot enter the log.", lambda t: t.refused),
    "sqlqueue_topic_change_age_seconds": (
        "For how long a change of the topic's partitions has been under way; 0 without one.",
        lambda t: t.change.age if t.change else 0.0,
    ),
}
OF_GROUP: dict[str, tuple[str, Callable[[GroupSurvey], float | None]]] = {
    "sqlqueue_lag_messages": ("Messages that are not settled.", lambda g: g.lag),
    "sqlqueue_oldest_age_seconds": (
        "Since when the oldest unsettled message has been published; 0 without any.",
        lambda g: g.oldest_age or 0.0,
    ),
    "sqlqueue_waited_seconds": (
        "For how long the oldest unsettled message has waited within its group's active hours; 0 outside them.",
        lambda g: g.waited or 0.0,
    ),
    "sqlqueue_in_flight_messages": ("Messages with a handler.", lambda g: g.in_flight),
    "sqlqueue_failing_messages": ("Messages that have failed, and wait for their retry.", lambda g: g.failing),
    "sqlqueue_waiting_messages": ("Messages postponed, delayed or behind a blocked key.", lambda g: g.waiting),
    "sqlqueue_dead_letters": ("Dead letters that were neither replayed nor discarded.", lambda g: g.dead_letters),
    "sqlqueue_group_subscribers": ("Consumer processes that serve the group.", lambda g: g.subscribers),
    "sqlqueue_group_paused": ("1 while the group or its topic is paused.", lambda g: g.paused),
    "sqlqueue_group_outside_hours": ("1 while the group is outside its active hours.", lambda g: g.outside_hours),
    "sqlqueue_group_limited": ("1 while messages of the group wait for a limit of it.", lambda g: g.limited),
    "sqlqueue_group_budget_spent": (
        "1 while so much of the group has failed that it tries one message at a time.",
        lambda g: g.budget_spent,
    ),
    "sqlqueue_failed_share": (
        "Which part of the group's attempts of the last five minutes failed, 0 to 1; 0 if there were fewer than ten.",
        lambda g: g.rate.failed_share,
    ),
    "sqlqueue_group_away": ("1 while no process serves the group and it holds back collection.", lambda g: g.away),
    "sqlqueue_unowned_partitions": ("Partitions of the group without an owner.", lambda g: g.unowned),
    "sqlqueue_stuck_partitions": (
        "Partitions with a backlog whose watermark stands still.",
        lambda g: len({stuck.partition for stuck in g.stuck}),
    ),
}
UP = ("sqlqueue_database_up", "1 if the queue's database answered and took a write when the gauges were read.")


class StatsCollector:
    """Yields the gauges when a registry collects, labelled with their database. Of a database that is
    unreachable or misconfigured only the gauge `database_up` is reported, as 0; it is 0 beside the others where no
    write is taken."""

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges without values, so that registering needs no database."""
        return list(_families({}))

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges with their current values."""
        try:
            logs = all_logs()
        except ConfigurationError:
            return [GaugeMetricFamily(*UP, value=0)]
        return list(_families({log.label: _survey(log) for log in logs}))


def _survey(log: Log) -> Survey | None:
    try:
        return recent_survey.get(log)
    except (ConfigurationError, Unreachable):
        return None


def _families(surveys: Mapping[str, Survey | None]) -> Iterator[GaugeMetricFamily]:
    """surveys: by database, None for one that cannot be read."""
    up = {(name,): survey is not None and not survey.writing.fails for name, survey in surveys.items()}
    yield _family(*UP, (), up)
    known = {name: survey for name, survey in surveys.items() if survey is not None}
    if surveys and not known:
        return
    topics = {(name, topic.name): topic for name, survey in known.items() for topic in survey.topics}
    groups = {(name, one.topic, one.group): one for name, survey in known.items() for one in survey.groups}
    for metric, (text, of_all) in OF_ALL.items():
        yield _family(metric, text, (), {(name,): of_all(survey) for name, survey in known.items()})
    for metric, (text, of_topic) in OF_TOPIC.items():
        yield _family(metric, text, ("topic",), {key: of_topic(topic) for key, topic in topics.items()})
    for figure in figures():
        counts = {key: topic.counts[figure.name].count for key, topic in topics.items() if figure.name in topic.counts}
        yield _family(f"sqlqueue_{figure.name}", figure.help, ("topic",), counts)
    for metric, (text, of_group) in OF_GROUP.items():
        shown = {key: of_group(group) or 0 for key, group in groups.items()}
        yield _family(metric, text, ("topic", "group"), shown)


def _family(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> GaugeMetricFamily:
    """Return a gauge. values: by database and labels."""
    family = GaugeMetricFamily(name, text, labels=["database", *labels])
    for key, value in values.items():
        family.add_metric(key, float(value))
    return family
