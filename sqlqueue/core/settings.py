"""What the SQLQUEUE setting may say: its options with their defaults and bounds, read and checked together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_origin

from sqlqueue.core.bounds import (
    CENTURY,
    DAY,
    SHORTEST,
    WEEK,
    checked_mapping,
    flag,
    mapping,
    number,
    one_of,
    option,
    read_options,
    seconds,
    text,
    whole,
)
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, SEPARATOR, checked_topic
from sqlqueue.core.new_message import checked_unique_for
from sqlqueue.core.partition.window import PREFETCH_BYTES
from sqlqueue.core.periodic import PERIODIC_TOPIC, ScheduleDefinition, configured
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

HISTORIES = ("none", "failures", "all")
PUBLISHED, ACKED = "published", "acked"
PLAIN_ENCODER = "json.JSONEncoder"
MOST_DATABASES = 64
ALIAS_LENGTH = 30
MOST_PARTITIONS = 10_000
MOST_PRIORITIES = 100
MOST_WEIGHT = 10_000
MOST_VERSIONS = 10_000
MOST_THREADS = 1_000
MOST_PREFETCH = 2**40  # bytes
MOST_PAYLOAD = 0x0FFFFFFF  # bytes of an array or object of PostgreSQL's jsonb
MOST_MESSAGES = 2**63 - 1
NAME = r"[^\W\d]\w*"
TOKEN = r"[!-~]{16,}"  # fits into a header, and is hard to guess


def _payload_type(value: Any, name: str, problems: list[str]) -> Any:
    is_path = isinstance(value, str) and re.fullmatch(rf"{NAME}(\.{NAME})+", value)
    if not (is_path or value is Any or isinstance(value, type) or get_origin(value) is not None):
        problems.append(f"{name} must be a class or its dotted path, not {value!r}")
    return value


def _weights(value: Any, name: str, problems: list[str]) -> Any:
    if not isinstance(value, (list, tuple)):
        problems.append(f"{name} must be a list, with a weight for each priority, not {value!r}")
        return None
    for weight in value:
        whole(weight, f"a weight in {name}", problems, MOST_WEIGHT)
    return value


def _unique_for(value: Any, name: str, problems: list[str]) -> float | None:
    try:
        return checked_unique_for(value)
    except InvalidMessage:
        form = "must be 'key', or seconds (a number or a timedelta) from a millisecond to ten years"
        problems.append(f"{name} {form}, not {value!r}")
        return None


def _databases(value: Any, name: str, problems: list[str]) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) and one for one in value):
        problems.append(f"{name} must be a list with aliases of DATABASES, not {value!r}")
        return ()
    for alias in value:
        if len(alias) > ALIAS_LENGTH or SEPARATOR in alias:
            problems.append(f"{name} names {alias!r}: an alias has up to {ALIAS_LENGTH} characters, and no commas")
    if len(set(value)) != len(value):
        problems.append(f"{name} names a database twice: {value!r}")
    return tuple(sorted(value))


@dataclass(frozen=True)
class TopicOptions:
    """A topic's options. retention: seconds to keep a message after it was published, even if every group has acked it;
    None keeps it for ever. history: which receipts are written (none, failures, all). priority_weights: of each
    priority, the most urgent first: its share of the deliveries while more urgent messages wait, too; None: a twentieth
    for all but the first together. payload_type: a class or its dotted path, None for any JSON; payload_version: what
    messages are published with. unique_for: for how many seconds a pending message keeps
    others of its key out, infinity for as long as it is pending; None: not at all. retention_from: from when retention
    counts: from publishing, or (acked) from when the last group had settled it. keep_collected: for how many seconds
    collected messages are kept in a table of their own; None: not at all. databases: the aliases of those that its
    keys are spread over; (): DATABASE alone."""

    partitions: int = number(32, MOST_PARTITIONS)
    priorities: int = number(1, MOST_PRIORITIES)
    retention: float | None = seconds(WEEK, none=True)
    history: str = one_of("failures", HISTORIES)
    payload_type: Any = option(None, _payload_type, none=True)
    payload_version: int = number(1, MOST_VERSIONS)
    priority_weights: Sequence[int] | None = option(None, _weights, none=True)
    unique_for: float | None = option(None, _unique_for, none=True)
    retention_from: str = one_of(PUBLISHED, (PUBLISHED, ACKED))
    keep_collected: float | None = seconds(None, SHORTEST, CENTURY, none=True)
    databases: Sequence[str] = option((), _databases)


@dataclass(frozen=True)
class HealthLimits:
    """Values beyond which the health endpoint answers 503 for a group. max_lag: messages; max_age: seconds for which
    the oldest one waits; max_dead_letters; no_subscriber: no process serves the group, and it is neither paused nor
    outside its active hours, in which alone the first two count. None and False: no limit."""

    max_lag: int | None = number(None, MOST_MESSAGES, 0, none=True)
    max_age: float | None = seconds(None, none=True)
    max_dead_letters: int | None = number(None, MOST_MESSAGES, 0, none=True)
    no_subscriber: bool = flag(False)


@dataclass(frozen=True)
class QueueOptions:
    """All options of SQLQUEUE with their defaults. Durations are seconds (a number or a timedelta)."""

    # The alias of the log: of tasks, batches, schedules, and topics that name no others.
    DATABASE: str = text("default", ".+", ", a database alias")
    # Of a replica of it, for what only looks; None: DATABASE.
    READ_ALIAS: str | None = text(None, ".+", ", a database alias, or None", none=True)
    # {name: {partitions, priorities, priority_weights, retention, history, unique_for, …}}
    TOPICS: Any = mapping(" of topic names to options")
    STRICT_TOPICS: bool = flag(False)  # refuse topics that are not declared; default: True if TOPICS names one
    PARTITIONS: int = number(32, MOST_PARTITIONS)  # of a topic that TOPICS does not name
    RETENTION: float | None = seconds(WEEK, none=True)  # of a topic that TOPICS does not name
    HISTORY: str = one_of("failures", HISTORIES)  # of a topic that TOPICS does not name
    RECEIPT_RETENTION: float = seconds(WEEK)
    LEASE_DURATION: float = seconds(30.0, SHORTEST, DAY)
    HEARTBEAT_INTERVAL: float = seconds(10.0, SHORTEST, DAY)
    BALANCE_INTERVAL: float = seconds(3.0, SHORTEST, DAY)
    POLL_INTERVAL: float = seconds(0.01, SHORTEST, DAY)  # right after work; doubles while idle
    IDLE_POLL_INTERVAL: float = seconds(0.4, SHORTEST, DAY)
    FLUSH_INTERVAL: float = seconds(1.0, 0.0, DAY)  # how long an ack may wait in memory
    COLLECT_INTERVAL: float = seconds(60.0, SHORTEST, DAY)
    SHUTDOWN_TIMEOUT: float = seconds(30.0, 0.0, DAY)  # how long a stopping consumer waits for its handlers
    THREADS: int = number(4, MOST_THREADS)
    CONSUMERS_MODULE: str = text("consumers", rf"{NAME}(\.{NAME})*", ", a module's name")
    WAKE: bool = flag(True)  # notify sleeping consumers after a commit, by datagrams
    # Where a consumer process listens: an address that publishers can reach.
    WAKE_ADDRESS: str = text("127.0.0.1", "[0-9A-Za-z._-]+", ", an IPv4 address or a host's name")
    # {max_lag, max_age, max_dead_letters, no_subscriber, topics: {name: {the same}}}
    HEALTH: Any = mapping(" of limits")
    # Requests with it see health and status in detail; "": none do.
    STATUS_TOKEN: str = text("", f"({TOKEN})?", " of 16 or more visible ASCII characters, without spaces", secret=True)
    STATS_INTERVAL: float = seconds(5.0, 0.0, DAY)  # how long stats are cached for health, status and metrics
    MAX_PAYLOAD_BYTES: int = number(16 * 1024 * 1024, MOST_PAYLOAD)  # of payload and headers, as JSON in UTF-8
    # Of payloads and headers that a consumer process has in memory.
    PREFETCH_BYTES: int = number(PREFETCH_BYTES, MOST_PREFETCH)
    # The class that encodes payloads and headers.
    JSON_ENCODER: str = text(PLAIN_ENCODER, rf"{NAME}(\.{NAME})+", ", a dotted path of a subclass of json.JSONEncoder")
    # {name: {cron, every, timezone, missed, topic, key, group, payload}}: ticks without code
    SCHEDULES: Any = mapping(" of names to schedules")
    HUNG_AFTER: float = seconds(60.0, SHORTEST, DAY)  # a consumer's loop that has begun no iteration for so long hangs
    # How long a message waits for a process that has its task, or its payload type.
    UNKNOWN_FOR: float = seconds(3600.0)


@dataclass(frozen=True)
class ParsedSetting:
    """The setting as it was read: options, options of the topics that TOPICS names, health limits by topic ("": of all
    others), periodic schedules by name, and every problem that was found."""

    options: QueueOptions
    topics: dict[str, TopicOptions]
    limits: dict[str, HealthLimits]
    schedules: dict[str, ScheduleDefinition]
    problems: list[str]
    aliases: tuple[str, ...] = ("default",)  # of the databases that have a log, DATABASE's first

    @property
    def several(self) -> bool:
        """Whether there are several logs."""
        return len(self.aliases) > 1


def read(given: Any) -> ParsedSetting:
    """Read and validate the whole setting."""
    problems: list[str] = []
    strict = isinstance(given, Mapping) and bool(given.get("TOPICS"))
    defaults = {"TOPICS": {}, "HEALTH": {}, "SCHEDULES": {}, "STRICT_TOPICS": strict}
    options = read_options(QueueOptions, given, "", problems, **defaults)
    if options.LEASE_DURATION < 2 * options.HEARTBEAT_INTERVAL:
        problems.append(
            f"LEASE_DURATION ({options.LEASE_DURATION:g} s) must be at least twice HEARTBEAT_INTERVAL"
            f" ({options.HEARTBEAT_INTERVAL:g} s), or one late heartbeat loses the leases"
        )
    topics = {name: _topic(name, own, options, problems) for name, own in options.TOPICS.items()}
    aliases = _aliases(options.DATABASE, topics.values(), problems)
    schedules = configured(options.SCHEDULES, problems)
    return ParsedSetting(options, topics, _limits(options.HEALTH, problems), schedules, problems, aliases)


def _topic(name: str, given: Any, options: QueueOptions, problems: list[str]) -> TopicOptions:
    path = f"TOPICS[{name!r}]"
    _note_name(name, problems)
    partitions = 1 if name == PERIODIC_TOPIC else options.PARTITIONS
    defaults = {"partitions": partitions, "retention": options.RETENTION, "history": options.HISTORY}
    found = read_options(TopicOptions, given, path, problems, **defaults)
    weights = found.priority_weights
    if weights is not None and len(weights) != found.priorities:
        problems.append(
            f"{path}['priority_weights'] has {len(weights)} weights, and 'priorities' is {found.priorities}: give each "
            "its weight"
        )
    if str(name).endswith(DEAD_LETTER_SUFFIX):
        if found.databases:
            problems.append(f"{path}['databases'] cannot be: dead letters are where their topic's messages are")
        if isinstance(given, Mapping) and given.get("retention") is not None:
            why = "dead letters are kept until they are replayed or discarded"
            problems.append(f"{path}['retention'] cannot be: {why}")
    return found


def _aliases(database: str, topics: Iterable[TopicOptions], problems: list[str]) -> tuple[str, ...]:
    """Return the aliases of all databases that have a log: DATABASE's first, then those that topics name."""
    others = sorted({alias for one in topics for alias in one.databases} - {database})
    if len(others) >= MOST_DATABASES:
        problems.append(f"TOPICS names {len(others)} databases beside DATABASE; {MOST_DATABASES} are the most in all")
    return (database, *others)


def _limits(given: Mapping[str, Any], problems: list[str]) -> dict[str, HealthLimits]:
    """Return the limits of HEALTH: by topic, and under "" those of topics that it does not name."""
    path = "HEALTH['topics']"
    named = checked_mapping(given.get("topics", {}), path, problems, " of topic names to limits")
    own = {name: value for name, value in given.items() if name != "topics"}
    general = read_options(HealthLimits, own, "HEALTH", problems)
    found = {"": general}
    for topic, limits in named.items():
        _note_name(topic, problems)
        found[topic] = read_options(HealthLimits, limits, f"{path}[{topic!r}]", problems, **asdict(general))
    return found


def _note_name(topic: str, problems: list[str]) -> None:
    try:
        checked_topic(topic)
    except ConfigurationError as error:
        problems.append(str(error))
