"""The parts of a Django project that Spark's processes need: its databases and its SQLQUEUE setting.

Spark plans a query in processes of its own, beside the driver. They get these with the pickled class of the data
source, so that no option, plan, log line or page of Spark's UI contains a password.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.periodic import PERIODIC_TOPIC
from sqlqueue.database.dbapi import Access, access
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown, LeaseLost, SqlqueueError
from sqlqueue.spark.options import SourceOptions
from sqlqueue.spark.topics import Topics, TopicValues


class ShardFailed(SqlqueueError):
    """A shard could not be planned for; the message names it."""


@dataclass(frozen=True)
class Project:
    """The databases that sqlqueue runs on, by alias, and the settings."""

    default: str
    accesses: Mapping[str, Access] = field(repr=False)
    databases: Mapping[str, dict[str, Any]] = field(repr=False)  # settings_dict of Django's connections
    options: Mapping[str, Any] = field(repr=False)  # SQLQUEUE
    topics: Topics  # how topics are created
    most_bytes: int  # of a payload and its headers
    reading: str = ""  # the alias of batch reads; "": default
    shards: Mapping[str, str] = field(default_factory=dict)  # the aliases of several shards by name; empty without them

    @property
    def sharded(self) -> bool:
        """Whether there are several shards."""
        return bool(self.shards)

    @property
    def home(self) -> str:
        """The name of DATABASE's shard; "" without SHARDS."""
        return self._shard_of(self.default)

    def is_replica(self, alias: str) -> bool:
        """Tell whether an alias is that of the replica that batch reads use."""
        return alias == self.reading and alias not in ("", self.default)

    def sources(self, options: SourceOptions, reading: str = "") -> dict[str, str]:
        """Return the aliases that a read may be of, by their shards ("" without SHARDS): the one that the options name,
        or all. reading: the alias to read instead of DATABASE's. Raises ConfigurationError for a shard that there is
        not."""
        if options.alias:
            return {self._shard_of(options.alias): options.alias}
        if options.shard and options.shard not in self.shards:
            hint = did_you_mean(options.shard, self.shards) or " SQLQUEUE has no SHARDS."
            raise ConfigurationError(f"there is no shard {options.shard!r}.{hint}")
        found = {name: reading or alias if alias == self.default else alias for name, alias in self.shards.items()}
        if options.shard:
            return {options.shard: found[options.shard]}
        return dict(sorted(found.items())) or {"": reading or self.default}

    def written(self, options: SourceOptions) -> dict[str, Access]:
        """Return how to connect to the databases that a write is to, by their shards. Raises ConfigurationError for an
        alias beside shards: a message's key says which."""
        if self.sharded and options.alias:
            raise ConfigurationError(
                "with SHARDS each message goes to the shard of its key: leave the option alias out"
            )
        return {shard: self.access(alias) for shard, alias in self.sources(options).items()}

    def access(self, alias: str = "") -> Access:
        """Return the connection parameters of an alias; raise ConfigurationError for an unknown one."""
        alias = alias or self.default
        if alias not in self.accesses:
            raise ConfigurationError(
                f"DATABASES has no alias {alias!r} for sqlqueue.{did_you_mean(alias, self.accesses)}"
            )
        return self.accesses[alias]

    def engine(self, alias: str = "") -> str:
        """Set up Django in this process with these databases unless it is set up; return its own alias of the database.
        Only the driver's processes call it."""
        import django
        from django.conf import settings
        from django.db import connections

        self.access(alias)
        if not settings.configured:
            databases = {"default": {}, **self.databases}
            apps = ["django.contrib.contenttypes", "sqlqueue"]
            settings.configure(DATABASES=databases, INSTALLED_APPS=apps, TIME_ZONE="UTC", LOGGING_CONFIG=None)
            django.setup()
        for each, database in self.databases.items():
            connections.settings.setdefault(self._own(each), database)
        settings.SQLQUEUE = self._own_options()
        from sqlqueue.conf import settings as queue_settings
        from sqlqueue.log.topics import forget_topics

        queue_settings.forget()
        forget_topics()  # of the last query's project
        return self._own(alias or self.default)

    def placed(self, sources: Mapping[str, str], topics: Iterable[str]) -> dict[str, list[str]]:
        """Return which of the topics are on each shard that has one; all of a read that names no topic. Only after
        engine()."""
        from sqlqueue.log.placement import existing_placement

        names = list(topics)
        if not self.sharded or not names:
            return dict.fromkeys(sources, names)
        found = {name: existing_placement(name) for name in names}
        on = {
            shard: [name for name, placed in found.items() if placed is not None and shard in placed.everywhere]
            for shard in sources
            if shard in self.shards
        }
        others = {shard: names for shard in sources if shard not in self.shards}
        return {shard: some for shard, some in on.items() if some} | others

    def _own(self, alias: str) -> str:
        """Return this process's alias of a database: one serves several queries, perhaps of several projects of one
        driver."""
        database = self.databases[alias]
        return "spark-" + hashlib.sha256(pickle.dumps(sorted(database.items()))).hexdigest()[:16]

    def _own_options(self) -> dict[str, Any]:
        options = {**self.options, "DATABASE": self._own(self.default)}
        options.pop("READ_ALIAS", None)  # what it is read for has been decided
        if self.shards:
            options["SHARDS"] = {name: {"alias": self._own(alias)} for name, alias in self.shards.items()}
        elif options.get("SHARDS"):
            options["SHARDS"] = {name: {"alias": options["DATABASE"]} for name in options["SHARDS"]}
        return options

    def _shard_of(self, alias: str) -> str:
        alias = self.default if self.is_replica(alias) else alias
        return next((name for name, each in self.shards.items() if each == alias), "")


@contextmanager
def at_shard(shard: str) -> Iterator[None]:
    """Let an error in this block say on which shard it was; "" where there is one only."""
    from django.db import Error

    try:
        yield
    except (HorizonUnknown, LeaseLost, ConfigurationError) as error:
        if not shard:
            raise
        kind = next(each for each in (HorizonUnknown, LeaseLost, ConfigurationError) if isinstance(error, each))
        raise kind(f"shard {shard!r}: {error}") from error
    except Error as error:
        if not shard:
            raise
        raise ShardFailed(f"shard {shard!r}: {error}") from error


def of_django() -> Project:
    """Return the Django project of this process, set up by DJANGO_SETTINGS_MODULE if it is not set up yet.

    Raises ConfigurationError if there is none.
    """
    import django
    from django.apps import apps
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections

    try:
        if not apps.ready:
            django.setup()
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"Spark needs the Django project: set DJANGO_SETTINGS_MODULE ({error})") from None
    from sqlqueue.conf import settings as queue_settings

    aliases = [alias for alias in connections if _vendor(alias) in DIALECTS]
    shards = dict(queue_settings.shards) if queue_settings.sharded else {}
    return Project(
        default=queue_settings.home,
        accesses={alias: access(alias) for alias in aliases},
        databases={alias: dict(connections[alias].settings_dict) for alias in aliases},
        options=dict(getattr(settings, "SQLQUEUE", {})),
        topics=_topics(queue_settings),
        most_bytes=queue_settings.MAX_PAYLOAD_BYTES,
        reading=str(queue_settings.READ_ALIAS or queue_settings.home),
        shards=shards,
    )


def _vendor(alias: str) -> str:
    """Return an alias's vendor; "" if its driver is not installed, so that this process cannot read it."""
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections

    try:
        return connections[alias].vendor
    except ImproperlyConfigured:
        return ""


def _topics(queue_settings: Any) -> Topics:
    def values(name: str) -> TopicValues:
        found = queue_settings.topic(name)
        return found.partitions, found.priorities, found.retention, found.history

    named = {name: values(name) for name in queue_settings.TOPICS}
    shards = {name: queue_settings.shards_of(name) for name in ("", *_known_topics(queue_settings))}
    home = queue_settings.shard_name(queue_settings.home) if queue_settings.sharded else ""
    return Topics(named, values(""), queue_settings.STRICT_TOPICS, shards, home)


def _known_topics(queue_settings: Any) -> set[str]:
    """Return the names of the topics whose shards are not those of any other topic."""
    return {*queue_settings.TOPICS, *queue_settings.declared_elsewhere(), PERIODIC_TOPIC}
