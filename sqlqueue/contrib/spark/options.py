"""The options of the data source: read, and checked together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from sqlqueue.contrib.spark.tables import MESSAGES, RECEIPTS, RECEIPTS_BY_ID, TABLES, Table
from sqlqueue.core.keys import GROUP_LENGTH, checked_name, checked_topic, did_you_mean
from sqlqueue.exceptions import ConfigurationError

# Options of Spark itself, which it passes on.
SPARK_OPTIONS = {"checkpointlocation", "path", "querymode"}
READ = (
    "topic",
    "database",
    "table",
    "columns",
    "numPartitions",
    "partition",
    "key",
    "from",
    "to",
    "fromId",
    "toId",
    "since",
    "until",
    "horizonTimeout",
)
STREAM = ("topic", "database", "columns", "numPartitions", "group", "start", "maxRowsPerBatch", "horizonTimeout")
WRITE = ("topic", "ids")


@dataclass(frozen=True)
class SourceOptions:
    """The options' values. low, high: offsets (or receipts' ids), both included; since (included) and until (excluded):
    microseconds since 1970."""

    database: str = ""
    topics: tuple[str, ...] = ()
    table: Table = MESSAGES
    columns: tuple[str, ...] = ()
    tasks: int | None = None  # numPartitions
    partitions: tuple[int, ...] = ()  # of the log
    keys: tuple[str, ...] = ()
    low: int = 1
    high: int | None = None
    since: int | None = None
    until: int | None = None
    horizon_timeout: int = 60  # seconds to wait for the horizon
    group: str = ""
    start: str = "earliest"
    rows: int | None = None
    ids: str = "column"

    @property
    def names_offsets(self) -> bool:
        """Whether offsets or ids bound the read, which are those of one database."""
        return self.low > 1 or self.high is not None


def read(given: Mapping[str, str], known: tuple[str, ...], doing: str) -> SourceOptions:
    """Return the options' values; doing: what they are for, as the errors name it.

    Raises ConfigurationError for an option that `known` does not list, and for a wrong value.
    """
    names = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in names and name.lower() not in SPARK_OPTIONS:
            raise ConfigurationError(f"sqlqueue has no option {name!r} for {doing}.{did_you_mean(name, known)}")
    text = {names[name.lower()]: value for name, value in given.items() if name.lower() in names}
    text = {name: value if name == "key" else value.strip() for name, value in text.items()}  # a key may have spaces
    if "path" in {name.lower() for name in given}:
        raise ConfigurationError("sqlqueue has no paths: call load() and save() without one, and name topics by option")
    table = text.get("table", MESSAGES.name)
    if table not in TABLES:
        raise ConfigurationError(f"there is no table {table!r} to read.{did_you_mean(table, TABLES)}")
    for name, choices in (("start", ("earliest", "latest")), ("ids", ("column", "none"))):
        if text.get(name, choices[0]) not in choices:
            raise ConfigurationError(f"{name} must be {' or '.join(choices)}, not {text[name]!r}")
    first, last, by_id = "from", "to", "fromId" in text or "toId" in text
    if by_id:
        if table != RECEIPTS.name or "from" in text or "to" in text:
            raise ConfigurationError("fromId and toId are for table receipts, and instead of the offsets' from and to")
        first, last = "fromId", "toId"
    return SourceOptions(
        database=text.get("database", ""),
        topics=tuple(checked_topic(topic) for topic in _items(text.get("topic", ""))),
        table=RECEIPTS_BY_ID if by_id else TABLES[table],
        columns=_items(text.get("columns", "")),
        tasks=_number(text, "numPartitions", 1),
        partitions=tuple(_whole(item, "partition", 0) for item in _items(text.get("partition", ""))),
        keys=_keys(text.get("key", "")),
        low=_number(text, first, 0) or 1,
        high=_number(text, last, 0),
        since=microseconds(utc_time(text["since"], "since")) if "since" in text else None,
        until=microseconds(utc_time(text["until"], "until")) if "until" in text else None,
        horizon_timeout=_whole(text.get("horizonTimeout", "60"), "horizonTimeout", 0),
        group=checked_name(text["group"], "group", GROUP_LENGTH) if text.get("group") else "",
        start=text.get("start", "earliest"),
        rows=_number(text, "maxRowsPerBatch", 1),
        ids=text.get("ids", "column"),
    )


def _items(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def _number(text: Mapping[str, str], name: str, least: int) -> int | None:
    return _whole(text[name], name, least) if name in text else None


def _whole(given: str, name: str, least: int) -> int:
    try:
        number = int(given)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigurationError(f"{name} must be a whole number from {least}, not {given!r}")
    return number


def _keys(text: str) -> tuple[str, ...]:
    """Return one key, or those of a JSON list, which may contain commas."""
    if not text.startswith("["):
        return (text,) if text else ()
    try:
        keys = json.loads(text)
    except ValueError:
        return (text,)
    if not keys or not all(isinstance(key, str) for key in keys):
        raise ConfigurationError(f"key must be a key, or a JSON list of keys, not {text!r}")
    return tuple(keys)


def utc_time(text: str, name: str) -> datetime:
    """Return a time in ISO 8601 in UTC, which it is without a time zone. Raises ConfigurationError, which says that
    `name` is wrong."""
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return at.astimezone(timezone.utc) if at.tzinfo else at.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{name} must be a time such as 2013-01-31T18:00:00Z, not {text!r}") from None


def microseconds(at: datetime) -> int:
    """Return an aware time as whole microseconds since 1970."""
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
