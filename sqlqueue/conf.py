"""The `SQLQUEUE` setting: one dict, read lazily, validated together, read again when a test overrides it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

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


DURATIONS = {
    "RETENTION",
    "RECEIPT_RETENTION",
    "LEASE_DURATION",
    "HEARTBEAT_INTERVAL",
    "BALANCE_INTERVAL",
    "POLL_INTERVAL",
    "IDLE_POLL_INTERVAL",
    "FLUSH_INTERVAL",
    "COLLECT_INTERVAL",
    "SHUTDOWN_TIMEOUT",
}


LONGEST = 100 * 365 * 86400.0  # seconds; the databases' times end somewhere


def duration(value: Any, name: str, problems: list[str]) -> Any:
    """Return seconds; note a problem, and return None, if it is no duration."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < LONGEST:
        problems.append(f"{name} must be seconds (a number or a timedelta, not negative), not {value!r}")
        return None
    return float(value)


def whole(value: Any, name: str, most: int, problems: list[str]) -> None:
    """Note a problem if the value is no whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        problems.append(f"{name} must be a whole number from 1 to {most}, not {value!r}")


def read(given: Any) -> tuple[Options, dict[str, TopicOptions], list[str]]:
    """Return the options, the named topics' options, and every problem that was found."""
    problems: list[str] = []
    if not isinstance(given, Mapping):
        return Options(TOPICS={}), {}, [f"SQLQUEUE must be a dict, not {given!r}"]
    known = {field.name: field.default for field in fields(Options)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            problems.append(f"SQLQUEUE has no option {name!r}.{did_you_mean(str(name), known)}")
        elif name in DURATIONS and not (name == "RETENTION" and value is None):
            seconds = duration(value, name, problems)
            if seconds is not None:  # else the default, so that what is computed from it is not wrong, too
                values[name] = seconds
        else:
            values[name] = value
    options = Options(**{"TOPICS": {}, **values})
    whole(options.PARTITIONS, "PARTITIONS", 10_000, problems)
    whole(options.THREADS, "THREADS", 1_000, problems)
    for name in ("DATABASE", "CONSUMERS_MODULE", "WAKE_ADDRESS"):
        if not isinstance(getattr(options, name), str):
            problems.append(f"{name} must be a string, not {getattr(options, name)!r}")
    for name in ("POLL_INTERVAL", "IDLE_POLL_INTERVAL", "BALANCE_INTERVAL", "HEARTBEAT_INTERVAL", "COLLECT_INTERVAL"):
        if not getattr(options, name) > 0:
            problems.append(f"{name} must be more than 0")
    for name in ("WAKE",):
        if not isinstance(getattr(options, name), bool):
            problems.append(f"{name} must be True or False, not {getattr(options, name)!r}")
    if options.HISTORY not in HISTORIES:
        problems.append(f"HISTORY must be one of {', '.join(HISTORIES)}, not {options.HISTORY!r}")
    if options.LEASE_DURATION < 2 * options.HEARTBEAT_INTERVAL:
        problems.append(
            f"LEASE_DURATION ({options.LEASE_DURATION:g} s) must be at least twice HEARTBEAT_INTERVAL"
            f" ({options.HEARTBEAT_INTERVAL:g} s), or one late heartbeat loses the leases"
        )
    return options, topics(options, problems), problems


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
            values["retention"] = duration(values["retention"], f"TOPICS[{topic!r}]['retention']", problems)
        whole(values["partitions"], f"TOPICS[{topic!r}]['partitions']", 10_000, problems)
        whole(values.get("priorities", 1), f"TOPICS[{topic!r}]['priorities']", 100, problems)
        if values["history"] not in HISTORIES:
            problems.append(f"TOPICS[{topic!r}]['history'] must be one of {', '.join(HISTORIES)}")
        found[topic] = TopicOptions(**values)  # type: ignore[arg-type]
    return found


class Settings:
    """The validated settings as attributes: `settings.LEASE_DURATION`. Reading one raises ConfigurationError if any is
    wrong."""

    @cached_property
    def _read(self) -> tuple[Options, dict[str, TopicOptions]]:
        options, named, problems = read(getattr(django_settings, "SQLQUEUE", {}))
        if problems:
            raise ConfigurationError("; ".join(problems))
        return options, named

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in Options.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self._read[0], name)

    def topic(self, name: str) -> TopicOptions:
        """Return the options of a topic, whether TOPICS names it or not."""
        options, named = self._read
        return named.get(name) or TopicOptions(options.PARTITIONS, 1, options.RETENTION, options.HISTORY)

    def problems(self) -> list[str]:
        """Return everything that is wrong with the setting, for the system checks."""
        return read(getattr(django_settings, "SQLQUEUE", {}))[2]

    def forget(self) -> None:
        """Read the setting again at its next use."""
        self.__dict__.pop("_read", None)


settings = Settings()


def _changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "SQLQUEUE":
        settings.forget()


setting_changed.connect(_changed, dispatch_uid="sqlqueue.conf")
