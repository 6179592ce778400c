"""Every number, text and switch that can be given is refused where it enters if it makes no sense: infinite, negative,
absurd. A new option that is not listed here fails."""

import argparse
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import Any

import pytest
from django.core.management import CommandParser, load_command_class
from django.test import override_settings

from sqlqueue import (
    ConfigurationError,
    InvalidMessage,
    Postpone,
    Retry,
    consumer,
    publish,
    publish_on_commit,
    subscribe,
)
from sqlqueue import testing as sqlqueue_testing
from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import DEFAULTS
from sqlqueue.core.settings import HealthLimits, QueueOptions, TopicOptions
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.management import arguments
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations import replay, replay_requests, reschedule
from sqlqueue.operations.reschedule import republish
from tests.factories import TopicFactory
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.once

INFINITE = float("inf")
NO_NUMBERS = [INFINITE, -INFINITE, float("nan"), -1, -0.5, 1e300, 10**400, "5", [], {}, b"5", 1 + 2j]
NO_DURATIONS = [*NO_NUMBERS, True, timedelta.max, timedelta(-1)]
NO_WHOLE = [*NO_NUMBERS, True, 0.5, 2.0, timedelta(1)]
NO_TEXTS = [5, None, "", "\0", b"x", []]
NO_SWITCHES = [1, 0, "yes", "", None, []]
NO_MAPPINGS = [5, "x", [], None]

SETTINGS: dict[str, list[Any]] = {
    "DATABASE": NO_TEXTS[:3],
    "TOPICS": NO_MAPPINGS,
    "STRICT_TOPICS": NO_SWITCHES,
    "PARTITIONS": [*NO_WHOLE, None, 0],
    "RETENTION": NO_DURATIONS,
    "HISTORY": [*NO_TEXTS, "some"],
    "RECEIPT_RETENTION": [*NO_DURATIONS, None],
    "LEASE_DURATION": [*NO_DURATIONS, None, 0],
    "HEARTBEAT_INTERVAL": [*NO_DURATIONS, None, 0],
    "BALANCE_INTERVAL": [*NO_DURATIONS, None, 0],
    "POLL_INTERVAL": [*NO_DURATIONS, None, 0],
    "IDLE_POLL_INTERVAL": [*NO_DURATIONS, None, 0],
    "FLUSH_INTERVAL": [*NO_DURATIONS, None],
    "COLLECT_INTERVAL": [*NO_DURATIONS, None, 0],
    "SHUTDOWN_TIMEOUT": [*NO_DURATIONS, None],
    "THREADS": [*NO_WHOLE, None, 0],
    "CONSUMERS_MODULE": [*NO_TEXTS, "a b", ".x"],
    "JSON_ENCODER": [*NO_TEXTS, "json", "a b.c", ".x"],
    "WAKE": NO_SWITCHES,
    "READ_ALIAS": ["", 5, True, [], "nowhere"],
    "WAKE_ADDRESS": [*NO_TEXTS, "a b", "::1"],
    "HEALTH": NO_MAPPINGS,
    "STATUS_TOKEN": [5, None, "short", "\0" * 20],
    "SCHEDULES": NO_MAPPINGS,
    "STATS_INTERVAL": [*NO_DURATIONS, None],
    "HUNG_AFTER": [*NO_DURATIONS, None, 0],
    "UNKNOWN_FOR": [*NO_DURATIONS, None],
    "MAX_PAYLOAD_BYTES": [*NO_WHOLE, None, 0],
    "PREFETCH_BYTES": [*NO_WHOLE, None, 0],
}
OF_TOPICS: dict[str, list[Any]] = {
    "partitions": [*NO_WHOLE, None, 0],
    "priorities": [*NO_WHOLE, None, 0],
    "retention": NO_DURATIONS,
    "history": [*NO_TEXTS, "some"],
    "payload_type": [5, "", "\0", b"x", [], {}, "orders", "a b.c"],
    "payload_version": [*NO_WHOLE, 0],
    "priority_weights": [5, "", b"x", {}, 1.5, True],
    "unique_for": [*NO_DURATIONS, 0, False],
    "retention_from": ["", "ack", None, 1, [], {}, True],
    "keep_collected": [*NO_DURATIONS, 0],
    "databases": [5, "", "a", b"x", [], {}, 1.5, True],
}
OF_LIMITS: dict[str, list[Any]] = {
    "max_lag": NO_WHOLE,
    "max_age": NO_DURATIONS,
    "max_dead_letters": NO_WHOLE,
    "no_subscriber": NO_SWITCHES,
}
OF_CONSUMERS: dict[str, list[Any]] = {
    "group": [*NO_TEXTS, "a b", "g" * 101],
    "ordering": [*NO_TEXTS, "keys"],
    "max_attempts": [*NO_WHOLE, 0],
    "visibility_timeout": [*NO_DURATIONS, None, 0],
    "backoff": [*NO_DURATIONS, None, lambda: 1],
    "max_backoff": [*NO_DURATIONS, None],
    "keep_results": [*NO_DURATIONS, 0],
    "where": [5, "x", [], {}, {"": 1}, {"headers.x": {}}, {"payload.x__gte": INFINITE}, {"payload.x__like": "y"}],
    "jitter": [*NO_NUMBERS, True, None, 1.5, timedelta(0)],
    "retry_for": [5, "OSError", int, OSError("x"), (), (OSError, "ValueError"), Retry],
    "reject_for": [5, "OSError", int, OSError("x"), (OSError, "ValueError"), Postpone],
    "batch": NO_SWITCHES,
    "atomic": NO_SWITCHES,
    "batch_size": [*NO_WHOLE, None, 0],
    "commit_every": [*NO_WHOLE, None, 0],
    "active": [5, "", b"x", [], "at night", "08:00-08:00", "1" * 300],
    "rate_limit": [5, "", b"x", [], "0/s", "10", "1.5/s", "10/y", "-1/s", "2000000000/s"],
    "rate_limit_per_key": [5, "", b"x", [], "0/s", "10", "1.5/s", "10/y"],
    "retry_budget": [5, "", b"x", [], "0/s", "10", "1.5/s", "10/y"],
    "concurrency_limit": [value for value in [*NO_WHOLE, 0, 2_000_000] if value is not None],
    "concurrency_limit_per_key": [value for value in [*NO_WHOLE, 0, 2_000_000] if value is not None],
    "start": [*NO_TEXTS, "now"],
    "payload_type": [5, "", b"x", [], {}, "no.such.Type", "json", threading.Lock],
    "upcast": [5, "x", [], {}, {0: str}, {"1": str}, {1: "x"}, {1: str}],
}


def each(table: dict[str, list[Any]]) -> list[Any]:
    """Return (name, value) of a table, for parametrize."""
    return [pytest.param(name, value, id=f"{name}={value!r:.20}") for name, values in table.items() for value in values]


def test_every_option_is_listed() -> None:
    assert set(SETTINGS) == {field.name for field in fields(QueueOptions)}
    assert set(OF_TOPICS) == {field.name for field in fields(TopicOptions)}
    assert set(OF_LIMITS) == {field.name for field in fields(HealthLimits)}
    assert set(OF_CONSUMERS) == set(DEFAULTS)


@pytest.mark.parametrize(("name", "value"), each(SETTINGS))
def test_a_setting(name: str, value: Any) -> None:
    with override_settings(SQLQUEUE={name: value}):
        assert any(name in problem for problem in settings.problems())


@pytest.mark.parametrize(("name", "value"), each(OF_TOPICS))
def test_a_topics_option(name: str, value: Any) -> None:
    with override_settings(SQLQUEUE={"TOPICS": {"t": {name: value}}}):
        assert any(f"TOPICS['t']['{name}'] must be" in problem for problem in settings.problems())


@pytest.mark.parametrize(("name", "value"), each(OF_LIMITS))
def test_a_limit_of_health(name: str, value: Any) -> None:
    with override_settings(SQLQUEUE={"HEALTH": {name: value}}):
        assert any(f"HEALTH['{name}'] must be" in problem for problem in settings.problems())


@pytest.mark.parametrize(("name", "value"), each(OF_CONSUMERS))
def test_a_consumers_option(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        consumer("t", **{name: value})
    with pytest.raises(ConfigurationError, match=name), subscribe("t", **{name: value}):
        pass


DELAYS: dict[str, Callable[[Any], object]] = {
    "publish": lambda delay: publish("t", 1, delay=delay),
    "publish_on_commit": lambda delay: publish_on_commit("t", 1, delay=delay),
    "Retry": lambda delay: Retry(delay=delay),
    "Postpone": lambda delay: Postpone(delay=delay),
    "republish": lambda delay: republish("t", "g", [1], delay=delay),
    "reschedule": lambda delay: reschedule.reschedule(LOG, "g", "t", [1], delay=delay),
    "reprioritize": lambda delay: reschedule.reprioritize(LOG, "g", "t", [1], 0, delay=delay),
    "drain": lambda timeout: sqlqueue_testing.drain(timeout=timeout),
    "drain ahead": lambda ahead: sqlqueue_testing.drain(ahead=ahead),
    "subscribe": lambda timeout: subscribe("t", timeout=timeout).__enter__(),
}


@pytest.mark.django_db
@pytest.mark.parametrize("taker", DELAYS)
@pytest.mark.parametrize("delay", NO_DURATIONS, ids=lambda value: f"{value!r:.20}")
def test_a_delay(taker: str, delay: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"must (be a number of seconds|lie between 0 and ten years)"):
        DELAYS[taker](delay)
    assert not Message.objects.exists()
    assert not ScheduledMessage.objects.exists()


def ends_of_the_calendar() -> Iterator[datetime]:
    for hours in (-14, 0, 14):
        zone = timezone(timedelta(hours=hours))
        yield from (datetime.max.replace(tzinfo=zone), datetime.min.replace(tzinfo=zone))
    now = datetime.now(timezone.utc)
    yield from (now + timedelta(days=3651), datetime(1969, 12, 31, tzinfo=timezone.utc))


@pytest.mark.django_db
@pytest.mark.parametrize("at", list(ends_of_the_calendar()), ids=str)
def test_a_time_that_is_never(at: datetime) -> None:
    with pytest.raises(InvalidMessage, match="between 1970 and ten years from now"):
        publish("t", 1, at=at)
    assert not ScheduledMessage.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("value", [*NO_WHOLE], ids=lambda value: f"{value!r:.20}")
def test_a_whole_number_of_an_operation(value: Any) -> None:
    for take in (
        lambda: replay.replay("t", limit=value),
        lambda: replay.discard("t", limit=value),
        lambda: reschedule.reschedule(LOG, "g", "t", [1], attempts=value),
    ):
        with pytest.raises(SqlqueueError, match="must be a whole number from 0 to"):
            take()


@pytest.mark.django_db
@pytest.mark.parametrize("rate", [*NO_NUMBERS, True, 0], ids=lambda value: f"{value!r:.20}")
def test_a_rate(rate: Any) -> None:
    with pytest.raises(ConfigurationError, match="the rate must be"):
        replay_requests.request_replay(LOG, "t", rate=rate)


@pytest.mark.parametrize("seconds", NO_DURATIONS, ids=lambda value: f"{value!r:.20}")
def test_more_time_for_a_delivery(consuming: Any, seconds: Any) -> None:
    refused: list[str] = []

    @consuming.consumer("t")
    def handle(delivery: Any) -> None:
        try:
            delivery.extend(seconds)
        except InvalidMessage as error:
            refused.append(str(error))

    publish("t", 1)
    sqlqueue_testing.drain()
    assert refused[0].startswith("seconds must ")


# runconsumers refuses everything together.
OTHERS = ("runconsumers",)
COMMANDS = (
    "queuedlq",
    "queuedoctor",
    "queuegroup",
    "queuemessage",
    "queuepause",
    "queuepublish",
    "queuepurge",
    "queuerecover",
    "queuerequests",
    "queuereschedule",
    "queueresume",
    "queueschedules",
    "queueschema",
    "queuestatus",
    "queuetail",
    "queuetopic",
)
NO_WORDS = ["inf", "-inf", "nan", "1e300", "9" * 5000, "-1", "", "x", "0x5"]


def numbers(command: str) -> list[tuple[list[str], argparse.Action]]:
    """Return the operations before each option of a command that takes a number, and the option."""
    made = load_command_class("sqlqueue", command).create_parser("manage.py", command)

    def of(parser: argparse.ArgumentParser, operations: list[str]) -> Iterator[tuple[list[str], argparse.Action]]:
        own = {action.dest for action in CommandParser()._actions} | {"verbosity"}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for operation, below in action.choices.items():
                    yield from of(below, [*operations, operation])
            elif action.type not in (None, arguments.moment) and action.dest not in own:
                yield operations, action

    return list(of(made, []))


def test_all_commands_are_listed() -> None:
    folder = import_module("sqlqueue.management.commands").__path__[0]
    from pathlib import Path

    names = {file.stem for file in Path(folder).glob("[a-z]*.py")}
    assert names == {*COMMANDS, *OTHERS}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_number_on_the_command_line(command: str) -> None:
    for _operations, action in numbers(command):
        assert action.type not in (int, float), f"{command} {action.dest} has no bounds"
        assert callable(action.type)
        for word in NO_WORDS:
            with pytest.raises(argparse.ArgumentTypeError, match=r"is not a (whole )?number from"):
                action.type(word)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["queuedlq", "replay", "t", "--rate", "inf"], "argument --rate: 'inf' is not a number from 0.01 to 1,000,000"),
        (["queuetail", "t", "--from", "9" * 30], "is not an offset: the highest is 9223372036854775807"),
        (["queuetail", "t", "--from", "9" * 5000], "is not an offset"),
        (["queuetail", "t", "--from", "9" * 400 + "d"], "is longer ago than 100 years"),
        (["runconsumers", "--check", "--processes", "100000"], "--processes must be a whole number from 0 to 1000"),
        (["runconsumers", "--check", "--threads", "100000"], "--threads must be a whole number from 1 to 1000"),
        (["runconsumers", "--check", "--health-port", "70000"], "port must be 0-65535"),
    ],
)
def test_a_command_that_was_given_one(words: list[str], said: str) -> None:
    TopicFactory()
    ended = run(*words)
    assert ended.code == 1
    assert said in ended.err


@pytest.mark.django_db
@pytest.mark.parametrize("word", ["0001-01-01T00:00", "9999-12-31T23:59:59", "0001-01-01T00:00+14:00", "36500d"])
def test_a_place_at_an_end_of_the_calendar_is_one_of_the_logs(word: str) -> None:
    publish("t", 1)
    assert run("queuetail", "t", "--from", word, "--no-follow").code == 0
