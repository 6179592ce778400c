"""The parts of a Django project that Spark's processes need, its databases and its SQLQUEUE setting, and Django there.

Spark plans a query in processes of its own, beside the driver, and carries it out in those of the executors. All of
them get these parts pickled inside of the data source, so that no option, plan, log line or page of Spark's UI contains
a password.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections

from sqlqueue.conf import settings as queue_settings
from sqlqueue.core.keys import did_you_mean
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown, LeaseLost, SqlqueueError
from sqlqueue.spark.options import SourceOptions


class ShardFailed(SqlqueueError):
    """A shard could not be planned for; the message names it."""


@dataclass(frozen=True)
class Project:
    """The databases that sqlqueue runs on, by alias, and the settings."""

    default: str
    databases: Mapping[str, dict[str, Any]] = field(repr=False)  # settings_dict of Django's connections
    options: Mapping[str, Any] = field(repr=False)  # SQLQUEUE
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
        or all. reading: the alias to read instead of DATABASE's. Raises ConfigurationError for a shard or an alias that
        there is not."""
        if options.alias:
            return {self._shard_of(options.alias): self._checked(options.alias)}
        if options.shard and options.shard not in self.shards:
            hint = did_you_mean(options.shard, self.shards) or " SQLQUEUE has no SHARDS."
            raise ConfigurationError(f"there is no shard {options.shard!r}.{hint}")
        found = {name: reading or alias if alias == self.default else alias for name, alias in self.shards.items()}
        if options.shard:
            return {options.shard: found[options.shard]}
        return dict(sorted(found.items())) or {"": reading or self.default}

    def written(self, options: SourceOptions) -> Project:
        """Return the project whose DATABASE is the one that the options name. Raises ConfigurationError for an alias
        that there is not, or beside shards: a message's key says which."""
        if not options.alias:
            return self
        if self.sharded:
            raise ConfigurationError(
                "with SHARDS each message goes to the shard of its key: leave the option alias out"
            )
        return replace(self, default=self._checked(options.alias))

    def engine(self, alias: str = "") -> str:
        """Set up Django in this process, one of Spark's, with these databases beside those that it has; return its own
        alias of one of them. SQLQUEUE is the project's from then on. Raises ConfigurationError if the process has set
        up a Django without sqlqueue."""
        if not settings.configured:
            given = ["django.contrib.contenttypes", "sqlqueue"]
            settings.configure(
                DATABASES={"default": {}}, INSTALLED_APPS=given, TIME_ZONE="UTC", LOGGING_CONFIG=None, USE_TZ=True
            )
        if not apps.ready:
            django.setup()
        if not apps.is_installed("sqlqueue"):
            raise ConfigurationError(
                "this process of Spark's has a Django without sqlqueue: add it to INSTALLED_APPS there, too"
            )
        for each, database in self.databases.items():
            connections.settings.setdefault(self._own(each), database)
        self._use(self._own_options())
        return self._own(alias or self.default)

    @contextmanager
    def task(self, alias: str = "") -> Iterator[str]:
        """Do so for one task of an executor, and yield the alias. The process may run the user's own code as well, for
        which it has the Django that DJANGO_SETTINGS_MODULE names, and at the end the SQLQUEUE that it had."""
        if os.environ.get("DJANGO_SETTINGS_MODULE") and not apps.ready:
            django.setup()
        before = getattr(settings, "SQLQUEUE", {}) if settings.configured else {}
        own = self.engine(alias)
        try:
            yield own
        finally:
            for each in self.databases:
                connections[self._own(each)].close()
            self._use(before)

    def placed(self, sources: Mapping[str, str], topics: Iterable[str]) -> dict[str, list[str]]:
        """Return which of the topics are on each shard that has one; all of a read that names no topic. Only after
        engine()."""
        from sqlqueue.log.placement import existing_placement

        names = list(topics)
        if not self.sharded or not names:
            return dict.fromkeys(sources, names)
        found = {name: existing_placement(name) for name in names}
        on = {
            shard: [name for name, placed in found.items() if placed is not None and shard in placed.shards]
            for shard in sources
            if shard in self.shards
        }
        others = {shard: names for shard in sources if shard not in self.shards}
        return {shard: some for shard, some in on.items() if some} | others

    def _checked(self, alias: str) -> str:
        if alias not in self.databases:
            raise ConfigurationError(
                f"DATABASES has no alias {alias!r} for sqlqueue.{did_you_mean(alias, self.databases)}"
            )
        return alias

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

    @staticmethod
    def _use(options: Mapping[str, Any]) -> None:
        from sqlqueue.log.topics import forget_topics

        settings.SQLQUEUE = options
        queue_settings.forget()
        forget_topics()  # of the former project

    def _shard_of(self, alias: str) -> str:
        alias = self.default if self.is_replica(alias) else alias
        return next((name for name, each in self.shards.items() if each == alias), "")


@contextmanager
def at_shard(shard: str) -> Iterator[None]:
    """Let an error in this block say on which shard it was; "" where there is one only."""
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
    try:
        if not apps.ready:
            django.setup()
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"Spark needs the Django project: set DJANGO_SETTINGS_MODULE ({error})") from None
    return Project(
        default=queue_settings.home,
        databases={alias: dict(connections[alias].settings_dict) for alias in connections if _is_readable(alias)},
        options=dict(getattr(settings, "SQLQUEUE", {})),
        reading=str(queue_settings.READ_ALIAS or queue_settings.home),
        shards=dict(queue_settings.shards) if queue_settings.sharded else {},
    )


def _is_readable(alias: str) -> bool:
    """Tell whether sqlqueue knows an alias's vendor, and its driver is installed."""
    try:
        return connections[alias].vendor in DIALECTS
    except ImproperlyConfigured:
        return False
