"""The SQLQUEUE setting: lazy, validated together, unknown names refused, read again when a test overrides it."""

from datetime import timedelta

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from sqlqueue import ConfigurationError, publish
from sqlqueue.conf import settings
from sqlqueue.core.bounds import WEEK
from sqlqueue.models import Topic

pytestmark = pytest.mark.once


def test_without_the_setting_the_defaults_hold() -> None:
    with override_settings():
        del django_settings.SQLQUEUE
        settings.forget()
        assert (settings.DATABASE, settings.PARTITIONS, settings.RETENTION) == ("default", 32, WEEK)
        assert settings.problems() == []
    settings.forget()


def test_it_is_read_again_when_a_test_overrides_it() -> None:
    default = settings.THREADS
    with override_settings(SQLQUEUE={"THREADS": 17}):
        assert settings.THREADS == 17
        with override_settings(SQLQUEUE={"THREADS": 18}):
            assert settings.THREADS == 18
        assert settings.THREADS == 17
    assert default == settings.THREADS


def test_durations_may_be_timedeltas() -> None:
    options = {"LEASE_DURATION": timedelta(minutes=2), "TOPICS": {"t": {"retention": timedelta(days=3)}}}
    with override_settings(SQLQUEUE=options):
        assert settings.LEASE_DURATION == 120
        assert settings.topic("t").retention == 3 * 86400


def test_a_topics_options_are_its_own_and_else_the_general_ones() -> None:
    options = {
        "PARTITIONS": 8,
        "RETENTION": None,
        "HISTORY": "all",
        "TOPICS": {"t": {"partitions": 2}, "u": {"history": "none", "priorities": 5, "retention": 60}},
    }
    with override_settings(SQLQUEUE=options):
        found = {name: settings.topic(name) for name in ("t", "u", "v")}
    assert [(o.partitions, o.priorities, o.retention, o.history) for o in found.values()] == [
        (2, 1, None, "all"),
        (8, 5, 60.0, "none"),
        (8, 1, None, "all"),
    ]


def test_a_topics_limits_are_its_own_and_else_the_general_ones() -> None:
    own = {"t": {"max_lag": None, "max_age": 5}, "u": {"no_subscriber": False}}
    health = {"max_lag": 100, "max_age": timedelta(hours=1), "no_subscriber": True, "topics": own}
    with override_settings(SQLQUEUE={"HEALTH": health}):
        limits = settings.reading.limits
        found = {name: limits.get(name, limits[""]) for name in ("t", "u", "v")}
    assert [(o.max_lag, o.max_age, o.max_dead_letters, o.no_subscriber) for o in found.values()] == [
        (None, 5.0, None, True),
        (100, 3600.0, None, False),
        (100, 3600.0, None, True),
    ]


def test_a_wrong_token_is_refused_without_being_told() -> None:
    with override_settings(SQLQUEUE={"STATUS_TOKEN": "not good"}):
        assert "not good" not in "".join(settings.problems())
    with override_settings(SQLQUEUE={"STATUS_TOKEN": "a-good-token-of-24-char"}):
        assert settings.STATUS_TOKEN == "a-good-token-of-24-char"
        assert settings.STATUS_TOKEN not in repr(settings.reading)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("not a dict", "SQLQUEUE must be a dict"),
        ({"LEASE_DURATON": 5}, "no option 'LEASE_DURATON'. Did you mean 'LEASE_DURATION'?"),
        ({"zzz": 5}, "no option 'zzz'. Known are: "),
        ({"LEASE_DURATION": 19, "HEARTBEAT_INTERVAL": 10}, "at least twice HEARTBEAT_INTERVAL"),
        ({"LEASE_DURATION": "30"}, "LEASE_DURATION must be seconds"),
        ({"LEASE_DURATION": -1}, "LEASE_DURATION must be seconds"),
        ({"LEASE_DURATION": True}, "LEASE_DURATION must be seconds"),
        ({"LEASE_DURATION": float("nan")}, "LEASE_DURATION must be seconds"),
        ({"LEASE_DURATION": float("inf")}, "LEASE_DURATION must be seconds"),
        ({"LEASE_DURATION": None}, "LEASE_DURATION must be seconds"),
        ({"POLL_INTERVAL": 0}, "POLL_INTERVAL must be seconds .* from 0.001 to 86400"),
        ({"HEARTBEAT_INTERVAL": 0}, "HEARTBEAT_INTERVAL must be seconds .* from 0.001"),
        ({"PARTITIONS": 0}, "PARTITIONS must be a whole number from 1"),
        ({"PARTITIONS": 1.5}, "PARTITIONS must be a whole number"),
        ({"PARTITIONS": 10**6}, "PARTITIONS must be a whole number from 1 to 10000"),
        ({"THREADS": True}, "THREADS must be a whole number"),
        ({"DATABASE": 5}, "DATABASE must be a string"),
        ({"WAKE": "yes"}, "WAKE must be True or False"),
        ({"HISTORY": "some"}, "HISTORY must be one of none, failures, all"),
        ({"TOPICS": []}, "TOPICS must be a dict"),
        ({"TOPICS": {"t": 5}}, r"TOPICS\['t'\] must be a dict"),
        ({"TOPICS": {"no name": {}}}, "'no name' is not a name"),
        ({"TOPICS": {"t": {"partition": 5}}}, "no option 'partition'. Did you mean 'partitions'?"),
        ({"TOPICS": {"t": {"partitions": 0}}}, r"TOPICS\['t'\]\['partitions'\] must be a whole number"),
        ({"TOPICS": {"t": {"priorities": 101}}}, r"TOPICS\['t'\]\['priorities'\] must be a whole number"),
        ({"TOPICS": {"t": {"retention": "week"}}}, r"TOPICS\['t'\]\['retention'\] must be seconds"),
        (
            {"TOPICS": {"t_dlq": {"retention": 60}}},
            r"TOPICS\['t_dlq'\]\['retention'\] cannot be: dead letters are kept",
        ),
        ({"TOPICS": {"t": {"history": "some"}}}, r"TOPICS\['t'\]\['history'\] must be one of"),
        ({"HEALTH": []}, "HEALTH must be a dict"),
        ({"HEALTH": {"max_lags": 5}}, "HEALTH has no option 'max_lags'. Did you mean 'max_lag'?"),
        ({"HEALTH": {"max_lag": -1}}, r"HEALTH\['max_lag'\] must be a whole number from 0 to"),
        ({"HEALTH": {"max_lag": True}}, r"HEALTH\['max_lag'\] must be a whole number"),
        ({"HEALTH": {"max_dead_letters": 1.5}}, r"HEALTH\['max_dead_letters'\] must be a whole number"),
        ({"HEALTH": {"max_age": "1 h"}}, r"HEALTH\['max_age'\] must be seconds"),
        ({"HEALTH": {"no_subscriber": 1}}, r"HEALTH\['no_subscriber'\] must be True or False"),
        ({"HEALTH": {"topics": 5}}, r"HEALTH\['topics'\] must be a dict"),
        ({"HEALTH": {"topics": {"t": 5}}}, r"HEALTH\['topics'\]\['t'\] must be a dict"),
        ({"HEALTH": {"topics": {"no name": {}}}}, "'no name' is not a name"),
        ({"HEALTH": {"topics": {"t": {"max_agee": 5}}}}, "no option 'max_agee'. Did you mean 'max_age'?"),
        ({"HEALTH": {"topics": {"t": {"topics": {}}}}}, "no option 'topics'"),
        ({"STATUS_TOKEN": "short"}, "STATUS_TOKEN must be a string of 16 or more"),
        ({"STATUS_TOKEN": "with a space in it"}, "STATUS_TOKEN must be a string of 16 or more"),
        ({"STATUS_TOKEN": None}, "STATUS_TOKEN must be a string of 16 or more"),
        ({"STATS_INTERVAL": -1}, "STATS_INTERVAL must be seconds"),
        ({"HUNG_AFTER": 0}, "HUNG_AFTER must be seconds .* from 0.001"),
        ({"MAX_PAYLOAD_BYTES": 0}, "MAX_PAYLOAD_BYTES must be a whole number from 1 to 268435455"),
        ({"MAX_PAYLOAD_BYTES": 2**28}, "MAX_PAYLOAD_BYTES must be a whole number from 1 to 268435455"),
    ],
)
def test_what_is_wrong_is_refused_and_named(options: object, said: str) -> None:
    with override_settings(SQLQUEUE=options):
        with pytest.raises(ConfigurationError, match=said):
            settings.THREADS  # noqa: B018
        assert len(settings.problems()) == 1


def test_everything_that_is_wrong_is_named_together() -> None:
    with override_settings(SQLQUEUE={"THREADS": 0, "HISTROY": "all", "POLL_INTERVAL": -1, "TOPICS": {"t": {"x": 1}}}):
        text = "\n".join(settings.problems())
        for word in ("THREADS", "HISTROY", "POLL_INTERVAL", "'x'"):
            assert word in text


@pytest.mark.django_db
def test_nothing_is_published_with_wrong_settings() -> None:
    with override_settings(SQLQUEUE={"THREADS": 0}), pytest.raises(ConfigurationError, match="THREADS"):
        publish("t", 1)
    assert not Topic.objects.exists()
