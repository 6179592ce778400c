"""The whole setting: the options of SQLQUEUE, their defaults and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sqlqueue.core.bounds import CENTURY, DAY, SHORTEST, WEEK, duration, whole
from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.partition.budget import PREFETCH_BYTES
from sqlqueue.core.periodic import ScheduleDefinition, configured
from sqlqueue.core.setting.databases import all_databases
from sqlqueue.core.setting.health import HealthLimits, health_limits
from sqlqueue.core.setting.topics import HISTORIES, MOST_PARTITIONS, TopicOptions, topics

PLAIN_ENCODER = "json.JSONEncoder"
MOST_THREADS = 1_000
MOST_PREFETCH = 2**40  # bytes
MOST_PAYLOAD = 0x0FFFFFFF  # bytes of an array or object of PostgreSQL's jsonb
# Lowest and highest value, in seconds.
DURATIONS = {
    "RETENTION": (0.0, CENTURY),
    "RECEIPT_RETENTION": (0.0, CENTURY),
    "BATCH_RETENTION": (0.0, CENTURY),
    "LEASE_DURATION": (SHORTEST, DAY),
    "HEARTBEAT_INTERVAL": (SHORTEST, DAY),
    "BALANCE_INTERVAL": (SHORTEST, DAY),
    "POLL_INTERVAL": (SHORTEST, DAY),
    "IDLE_POLL_INTERVAL": (SHORTEST, DAY),
    "FLUSH_INTERVAL": (0.0, DAY),
    "COLLECT_INTERVAL": (SHORTEST, DAY),
    "SHUTDOWN_TIMEOUT": (0.0, DAY),
    "STATS_INTERVAL": (0.0, DAY),
    "HUNG_AFTER": (SHORTEST, DAY),
    "UNKNOWN_FOR": (0.0, CENTURY),
}
FOR_EVER = ("RETENTION",)  # those that may be None
# Pattern and description of each text option.
TEXTS = {
    "DATABASE": (re.compile(r".+"), "a database alias"),
    "CONSUMERS_MODULE": (re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*"), "a module's name"),
    "JSON_ENCODER": (re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+"), "the dotted path of a subclass of json.JSONEncoder"),
    "WAKE_ADDRESS": (re.compile(r"[0-9A-Za-z._-]+"), "an IPv4 address or a host's name"),
}
TOKEN = re.compile(r"[!-~]{16,}")  # fits into a header, and is hard to guess


@dataclass(frozen=True)
class QueueOptions:
    """All options of SQLQUEUE with their defaults. Durations are seconds (a number or a timedelta)."""

    DATABASE: str = "default"  # the alias of the log: of tasks, batches, schedules, and topics that name no others
    READ_ALIAS: str | None = None  # of a replica of it, for what only looks; None: DATABASE
    TOPICS: Any = None  # {name: {partitions, priorities, priority_weights, retention, history, unique_for, …}}
    STRICT_TOPICS: bool = False  # refuse topics that are not declared; default: True if TOPICS names one
    PARTITIONS: int = 32  # of a topic that TOPICS does not name
    RETENTION: float | None = WEEK  # of a topic that TOPICS does not name
    HISTORY: str = "failures"  # of a topic that TOPICS does not name
    RECEIPT_RETENTION: float = WEEK
    BATCH_RETENTION: float = WEEK  # of a batch that has ended
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
    WAKE: bool = True  # notify sleeping consumers after a commit, by datagrams
    WAKE_ADDRESS: str = "127.0.0.1"  # where a consumer process listens: an address that publishers can reach
    HEALTH: Any = None  # {max_lag, max_age, max_dead_letters, no_subscriber, topics: {name: {the same}}}
    STATUS_TOKEN: str = field(default="", repr=False)  # requests with it see health and status in detail; "": none do
    STATS_INTERVAL: float = 5.0  # how long stats are cached for health, status and metrics
    MAX_PAYLOAD_BYTES: int = 16 * 1024 * 1024  # of payload and headers, as JSON in UTF-8
    PREFETCH_BYTES: int = PREFETCH_BYTES  # of payloads and headers that a consumer process has in memory
    JSON_ENCODER: str = PLAIN_ENCODER  # dotted path of the class that encodes payloads and headers
    SCHEDULES: Any = None  # {name: {cron, every, timezone, missed, topic, key, group, payload}}: ticks without code
    HUNG_AFTER: float = 60.0  # a consumer's loop that has begun no iteration for so long hangs
    UNKNOWN_FOR: float = 3600.0  # how long a message waits for a process that has its task, or its payload type


@dataclass(frozen=True)
class ParsedSetting:
    """The setting as it was read: options, options of the topics that TOPICS names, health limits by topic ("": of all
    others), periodic schedules by name, and every problem that was found."""

    options: QueueOptions
    topics: dict[str, TopicOptions]
    limits: dict[str, HealthLimits]
    schedules: dict[str, ScheduleDefinition]
    problems: list[str]
    aliases: tuple[str, ...] = (QueueOptions.DATABASE,)  # of the databases that have a log, DATABASE's first


def read(given: Any) -> ParsedSetting:
    """Read and validate the whole setting."""
    problems: list[str] = []
    if not isinstance(given, Mapping):
        return ParsedSetting(QueueOptions(TOPICS={}), {}, {}, {}, [f"SQLQUEUE must be a dict, not {given!r}"])
    names = {field.name for field in fields(QueueOptions)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in names:
            problems.append(f"SQLQUEUE has no option {name!r}.{did_you_mean(str(name), names)}")
        elif name in DURATIONS and not (name in FOR_EVER and value is None):
            seconds = duration(value, name, problems, *DURATIONS[name])
            if seconds is not None:  # else the default, so that what is computed from it is not wrong, too
                values[name] = seconds
        else:
            values[name] = value
    defaults = {"TOPICS": {}, "HEALTH": {}, "SCHEDULES": {}, "STRICT_TOPICS": bool(values.get("TOPICS"))}
    options = QueueOptions(**{**defaults, **values})
    whole(options.PARTITIONS, "PARTITIONS", MOST_PARTITIONS, problems)
    whole(options.THREADS, "THREADS", MOST_THREADS, problems)
    whole(options.MAX_PAYLOAD_BYTES, "MAX_PAYLOAD_BYTES", MOST_PAYLOAD, problems)
    whole(options.PREFETCH_BYTES, "PREFETCH_BYTES", MOST_PREFETCH, problems)
    for name, (form, what) in TEXTS.items():
        text = getattr(options, name)
        if not isinstance(text, str) or not form.fullmatch(text):
            problems.append(f"{name} must be a string, {what}, not {text!r}")
    if options.READ_ALIAS is not None and not (isinstance(options.READ_ALIAS, str) and options.READ_ALIAS):
        problems.append(f"READ_ALIAS must be None or a string, a database alias, not {options.READ_ALIAS!r}")
    if not isinstance(options.STATUS_TOKEN, str) or not (
        options.STATUS_TOKEN == "" or TOKEN.fullmatch(options.STATUS_TOKEN)
    ):
        problems.append("STATUS_TOKEN must be a string of 16 or more visible ASCII characters, without spaces")
    for name in ("WAKE", "STRICT_TOPICS"):
        if not isinstance(getattr(options, name), bool):
            problems.append(f"{name} must be True or False, not {getattr(options, name)!r}")
    if options.HISTORY not in HISTORIES:
        problems.append(f"HISTORY must be one of {', '.join(HISTORIES)}, not {options.HISTORY!r}")
    if options.LEASE_DURATION < 2 * options.HEARTBEAT_INTERVAL:
        problems.append(
            f"LEASE_DURATION ({options.LEASE_DURATION:g} s) must be at least twice HEARTBEAT_INTERVAL"
            f" ({options.HEARTBEAT_INTERVAL:g} s), or one late heartbeat loses the leases"
        )
    limits = health_limits(options.HEALTH, problems)
    of_others = TopicOptions(options.PARTITIONS, 1, options.RETENTION, options.HISTORY)
    named = topics(options.TOPICS, of_others, problems)
    aliases = all_databases(options.DATABASE, (alias for one in named.values() for alias in one.databases), problems)
    return ParsedSetting(options, named, limits, configured(options.SCHEDULES, problems), problems, aliases)
