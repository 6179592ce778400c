"""The `SQLQUEUE` setting: one dict, read lazily, validated together, read again when a test overrides it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from sqlqueue.core.bounds import DAY, SHORTEST, duration, whole
from sqlqueue.core.keys import checked_topic, did_you_mean
from sqlqueue.exceptions import ConfigurationError

WEEK = 7 * 86400.0
HISTORIES = ("none", "failures", "all")


@dataclass(frozen=True)
class TopicOptions:
    """A topic's options. retention: seconds to keep a message after it was published, even when every group has acked
    it;
    None keeps it for ever. history: which receipts are written (none, failures, all)."""

    partitions: int = 32
    priorities: int = 1
    retention: float | None = WEEK
    history: str = "failures"


@dataclass(frozen=True)
class Limits:
    """When the health endpoint says that a group is not well. max_lag: messages; max_age: seconds for which the oldest
    one waits; max_dead_letters; no_subscriber: nobody serves it, and it is not paused. None and False: no limit."""

    max_lag: int | None = None
    max_age: float | None = None
    max_dead_letters: int | None = None
    no_subscriber: bool = False


@dataclass(frozen=True)
class Options:
    """All settings with their defaults. Durations are seconds (a number or a timedelta)."""

    DATABASE: str = "default"  # the alias that the queue's tables live on
    TOPICS: Any = None  # {name: {partitions, priorities, retention, history}}
    PARTITIONS: int = 32  # of a topic that TOPICS does not name
    RETENTION: float | None = WEEK  # likewise
    HISTORY: str = "failures"  # likewise
    RECEIPT_RETENTION: float = WEEK
    LEASE_DURATION: float = 30.0
    HEARTBEAT_INTERVAL: float = 10.0
    BALANCE_INTERVAL: float = 3.0
    POLL_INTERVAL: float = 0.01  # right after work; doubles while idle
    IDLE_POLL_INTERVAL: float = 0.4
    FLUSH_INTERVAL: float = 1.0  # how long an ack may wait in memory
    COLLECT_INTERVAL: float = 60.0
    SHUTDOWN_TIMEOUT: float = 30.0  # how long a stopping consumer waits for its handlers
    THREADS: int = 4
    CONSUMERS_MODULE: str = "consumers"
    WAKE: bool = True  # ring sleeping consumers after a commit, by datagrams
    WAKE_ADDRESS: str = "127.0.0.1"  # where a consumer process listens for them: an address that publishers can reach
    HEALTH: Any = None  # {max_lag, max_age, max_dead_letters, no_subscriber, topics: {name: {the same}}}
    STATUS_TOKEN: str = field(default="", repr=False)  # lets its bearer see health and status in detail; "": nobody
    SURVEY_INTERVAL: float = 5.0  # how long one survey answers everybody who asks for health, status or metrics
    MAX_PAYLOAD_BYTES: int = 16 * 1024 * 1024  # of payload and headers, as JSON in UTF-8
    HUNG_AFTER: float = 60.0  # a consumer's loop that has not turned for so long hangs


MOST_PARTITIONS = 10_000
MOST_PRIORITIES = 100
MOST_THREADS = 1_000
MOST_PAYLOAD = 0x0FFFFFFF  # bytes of an array or object of PostgreSQL's jsonb
CENTURY = 100 * 365 * DAY  # the databases' times end somewhere
# From how many seconds to how many.
DURATIONS = {
    "RETENTION": (0.0, CENTURY),
    "RECEIPT_RETENTION": (0.0, CENTURY),
    "LEASE_DURATION": (SHORTEST, DAY),
    "HEARTBEAT_INTERVAL": (SHORTEST, DAY),
    "BALANCE_INTERVAL": (SHORTEST, DAY),
    "POLL_INTERVAL": (SHORTEST, DAY),
    "IDLE_POLL_INTERVAL": (SHORTEST, DAY),
    "FLUSH_INTERVAL": (0.0, DAY),
    "COLLECT_INTERVAL": (SHORTEST, DAY),
    "SHUTDOWN_TIMEOUT": (0.0, DAY),
    "SURVEY_INTERVAL": (0.0, DAY),
    "HUNG_AFTER": (SHORTEST, DAY),
}
# What each text has to look like.
TEXTS = {
    "DATABASE": (re.compile(r".+"), "a database alias"),
    "CONSUMERS_MODULE": (re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*"), "a module's name"),
    "WAKE_ADDRESS": (re.compile(r"[0-9A-Za-z._-]+"), "an IPv4 address or a host's name"),
}
TOKEN = re.compile(r"[!-~]{16,}")  # what fits into a header, and is not guessed


@dataclass(frozen=True)
class Reading:
    """The setting as it was read: the options, the named topics' options, the limits (of "" those of topics that are
    not named), and every problem that was found."""

    options: Options
    topics: dict[str, TopicOptions]
    limits: dict[str, Limits]
    problems: list[str]


def read(given: Any) -> Reading:
    """Read and validate the whole setting."""
    problems: list[str] = []
    if not isinstance(given, Mapping):
        return Reading(Options(TOPICS={}), {}, {}, [f"SQLQUEUE must be a dict, not {given!r}"])
    known = {field.name: field.default for field in fields(Options)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            problems.append(f"SQLQUEUE has no option {name!r}.{did_you_mean(str(name), known)}")
        elif name in DURATIONS and not (name == "RETENTION" and value is None):
            seconds = duration(value, name, problems, *DURATIONS[name])
            if seconds is not None:  # else the default, so that what is computed from it is not wrong, too
                values[name] = seconds
        else:
            values[name] = value
    options = Options(**{"TOPICS": {}, "HEALTH": {}, **values})
    whole(options.PARTITIONS, "PARTITIONS", MOST_PARTITIONS, problems)
    whole(options.THREADS, "THREADS", MOST_THREADS, problems)
    whole(options.MAX_PAYLOAD_BYTES, "MAX_PAYLOAD_BYTES", MOST_PAYLOAD, problems)
    for name, (form, what) in TEXTS.items():
        text = getattr(options, name)
        if not isinstance(text, str) or not form.fullmatch(text):
            problems.append(f"{name} must be a string, {what}, not {text!r}")
    if not isinstance(options.STATUS_TOKEN, str) or not (
        options.STATUS_TOKEN == "" or TOKEN.fullmatch(options.STATUS_TOKEN)
    ):
        problems.append("STATUS_TOKEN must be a string of 16 or more visible ASCII characters, without spaces")
    wake: Any = options.WAKE
    if not isinstance(wake, bool):
        problems.append(f"WAKE must be True or False, not {wake!r}")
    if options.HISTORY not in HISTORIES:
        problems.append(f"HISTORY must be one of {', '.join(HISTORIES)}, not {options.HISTORY!r}")
    if options.LEASE_DURATION < 2 * options.HEARTBEAT_INTERVAL:
        problems.append(
            f"LEASE_DURATION ({options.LEASE_DURATION:g} s) must be at least twice HEARTBEAT_INTERVAL"
            f" ({options.HEARTBEAT_INTERVAL:g} s), or one late heartbeat loses the leases"
        )
    return Reading(options, topics(options, problems), limits(options.HEALTH, problems), problems)


def topics(options: Options, problems: list[str]) -> dict[str, TopicOptions]:
    """Return the options of the topics that TOPICS names."""
    found: dict[str, TopicOptions] = {}
    if not isinstance(options.TOPICS, Mapping):
        problems.append(f"TOPICS must be a dict of topic names to options, not {options.TOPICS!r}")
        return found
    known = {field.name for field in fields(TopicOptions)}
    for topic, given in options.TOPICS.items():
        try:
            checked_topic(topic)
        except ConfigurationError as error:
            problems.append(str(error))
        if not isinstance(given, Mapping):
            problems.append(f"TOPICS[{topic!r}] must be a dict, not {given!r}")
            continue
        unknown = [name for name in given if name not in known]
        problems += [f"TOPICS[{topic!r}] has no option {name!r}.{did_you_mean(str(name), known)}" for name in unknown]
        values = {"partitions": options.PARTITIONS, "retention": options.RETENTION, "history": options.HISTORY}
        values.update({name: value for name, value in given.items() if name in known})
        if values["retention"] is not None:
            values["retention"] = duration(values["retention"], f"TOPICS[{topic!r}]['retention']", problems, 0, CENTURY)
        whole(values["partitions"], f"TOPICS[{topic!r}]['partitions']", MOST_PARTITIONS, problems)
        whole(values.get("priorities", 1), f"TOPICS[{topic!r}]['priorities']", MOST_PRIORITIES, problems)
        if values["history"] not in HISTORIES:
            problems.append(f"TOPICS[{topic!r}]['history'] must be one of {', '.join(HISTORIES)}")
        found[topic] = TopicOptions(**values)  # type: ignore[arg-type]
    return found


def limits(given: Any, problems: list[str]) -> dict[str, Limits]:
    """Return the limits of HEALTH: by topic, and under "" those of topics that it does not name."""
    if not isinstance(given, Mapping):
        problems.append(f"HEALTH must be a dict, not {given!r}")
        return {}
    named = given.get("topics", {})
    if not isinstance(named, Mapping):
        problems.append(f"HEALTH['topics'] must be a dict of topic names to limits, not {named!r}")
        named = {}
    general = _limits({name: value for name, value in given.items() if name != "topics"}, {}, "HEALTH", problems)
    found = {"": Limits(**general)}
    for topic, own in named.items():
        try:
            checked_topic(topic)
        except ConfigurationError as error:
            problems.append(str(error))
        found[topic] = Limits(**_limits(own, general, f"HEALTH['topics'][{topic!r}]", problems))
    return found


def _limits(given: Any, general: dict[str, Any], place: str, problems: list[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        problems.append(f"{place} must be a dict, not {given!r}")
        return general
    known = {field.name for field in fields(Limits)}
    values: dict[str, Any] = dict(general)
    for name, value in given.items():
        if name not in known:
            also = {"topics"} if place == "HEALTH" else set()
            problems.append(f"{place} has no option {name!r}.{did_you_mean(str(name), known | also)}")
        elif name == "no_subscriber":
            if not isinstance(value, bool):
                problems.append(f"{place}[{name!r}] must be True or False, not {value!r}")
            values[name] = bool(value)
        elif value is None:
            values[name] = None
        elif name == "max_age":
            values[name] = duration(value, f"{place}[{name!r}]", problems, 0, CENTURY)
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            problems.append(f"{place}[{name!r}] must be a whole number, not negative, or None, not {value!r}")
        else:
            values[name] = value
    return values


class Settings:
    """The validated settings as attributes: `settings.LEASE_DURATION`. Reading one raises ConfigurationError if any is
    wrong."""

    @cached_property
    def _read(self) -> Reading:
        reading = read(getattr(django_settings, "SQLQUEUE", {}))
        if reading.problems:
            raise ConfigurationError("; ".join(reading.problems))
        return reading

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in Options.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self._read.options, name)

    def topic(self, name: str) -> TopicOptions:
        """Return the options of a topic, whether TOPICS names it or not."""
        options, named = self._read.options, self._read.topics
        return named.get(name) or TopicOptions(options.PARTITIONS, 1, options.RETENTION, options.HISTORY)

    def limits(self, topic: str) -> Limits:
        """Return when a group of this topic is not well."""
        named = self._read.limits
        return named.get(topic) or named[""]

    def problems(self) -> list[str]:
        """Return everything that is wrong with the setting, for the system checks."""
        return read(getattr(django_settings, "SQLQUEUE", {})).problems

    def forget(self) -> None:
        """Read the setting again at its next use."""
        self.__dict__.pop("_read", None)


settings = Settings()


def _changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "SQLQUEUE":
        settings.forget()


setting_changed.connect(_changed, dispatch_uid="sqlqueue.conf")
