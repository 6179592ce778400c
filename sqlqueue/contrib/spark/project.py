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
from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.core.keys import did_you_mean
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown, LeaseLost, SqlqueueError

APP = "sqlqueue.contrib.spark"


class DatabaseFailed(SqlqueueError):
    """A database could not be planned for; the message names it."""


@dataclass(frozen=True)
class Project:
    """The databases that sqlqueue runs on, by alias, and the settings."""

    default: str
    databases: Mapping[str, dict[str, Any]] = field(repr=False)  # settings_dict of Django's connections
    options: Mapping[str, Any] = field(repr=False)  # SQLQUEUE
    reading: str = ""  # the alias of batch reads; "": default
    logs: tuple[str, ...] = ()  # the aliases of the databases that have a log, if there are several

    @property
    def several(self) -> bool:
        """Whether there are several logs."""
        return bool(self.logs)

    @property
    def home(self) -> str:
        """DATABASE, as it is shown: "" if there is one log only."""
        return self._label(self.default)

    def is_replica(self, alias: str) -> bool:
        """Tell whether an alias is that of the replica that batch reads use."""
        return alias == self.reading and alias not in ("", self.default)

    def sources(self, options: SourceOptions, reading: str = "") -> dict[str, str]:
        """Return the aliases that a read may be of, by the databases that they are shown as ("" if there is one log
        only): the one that the options name, or all. reading: the alias to read instead of DATABASE. Raises
        ConfigurationError for one that there is not."""
        if options.alias:
            return {self._label(options.alias): self._checked(options.alias)}
        if options.database and options.database not in self.logs:
            hint = did_you_mean(options.database, self.logs) or " There is one log only."
            raise ConfigurationError(f"there is no log on {options.database!r}.{hint}")
        found = {alias: reading or alias if alias == self.default else alias for alias in self.logs}
        if options.database:
            return {options.database: found[options.database]}
        return dict(sorted(found.items())) or {"": reading or self.default}

    def written(self, options: SourceOptions) -> Project:
        """Return the project whose DATABASE is the one that the options name. Raises ConfigurationError for an alias
        that there is not, or where there are several logs: a message's key says which."""
        if not options.alias:
            return self
        if self.several:
            raise ConfigurationError("each message goes to the database of its key: leave the option alias out")
        return replace(self, default=self._checked(options.alias))

    def engine(self, alias: str = "") -> Log:
        """Set up Django in this process, one of Spark's, with these databases beside those that it has; return one
        of them. SQLQUEUE is the project's from then on. Raises ConfigurationError if the process has set
        up a Django without this app."""
        if not settings.configured:
            given = ["django.contrib.contenttypes", "sqlqueue", APP]
            settings.configure(
                DATABASES={"default": {}}, INSTALLED_APPS=given, TIME_ZONE="UTC", LOGGING_CONFIG=None, USE_TZ=True
            )
        if not apps.ready:
            django.setup()
        if not apps.is_installed(APP):
            raise ConfigurationError(
                f"this process of Spark's has a Django without {APP}: add it to INSTALLED_APPS there"
            )
        for each, database in self.databases.items():
            own = self._own(each)
            if connections.settings.get(own) != database:
                if own in connections.settings:
                    connections[own].close()
                    del connections[own]
                connections.settings[own] = database
        self._use(self._own_options())
        return Log.of(self._own(alias or self.default))

    @contextmanager
    def task(self, alias: str = "") -> Iterator[Log]:
        """Do so for one task of an executor, and yield the log. The process may run the user's own code as well, for
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
        """Return which of the topics are on each database that has one; all of a read that names no topic. Only after
        engine()."""
        names = list(topics)
        if not self.several or not names:
            return dict.fromkeys(sources, names)
        on = {
            database: [name for name in names if database in queue_settings.databases_of(name)]
            for database in sources
            if database in self.logs
        }
        others = {database: names for database in sources if database not in self.logs}
        return {database: some for database, some in on.items() if some} | others

    def _checked(self, alias: str) -> str:
        if alias not in self.databases:
            raise ConfigurationError(
                f"DATABASES has no alias {alias!r} for sqlqueue.{did_you_mean(alias, self.databases)}"
            )
        return alias

    def _own(self, alias: str) -> str:
        """Return this process's alias of a database: one serves several queries, perhaps of several projects of one
        driver. Of several logs the aliases stay: by them a key's database is found."""
        if self.several:
            return alias
        database = self.databases[alias]
        return "spark-" + hashlib.sha256(pickle.dumps(sorted(database.items()))).hexdigest()[:16]

    def _own_options(self) -> dict[str, Any]:
        options = {**self.options, "DATABASE": self._own(self.default)}
        options.pop("READ_ALIAS", None)  # what it is read for has been decided
        if not self.several and options.get("TOPICS"):
            options["TOPICS"] = {
                topic: {name: value for name, value in own.items() if name != "databases"}
                for topic, own in options["TOPICS"].items()
            }
        return options

    @staticmethod
    def _use(options: Mapping[str, Any]) -> None:
        from sqlqueue.log.topics import forget_topics

        settings.SQLQUEUE = options
        queue_settings.forget()
        forget_topics()  # of the former project

    def _label(self, alias: str) -> str:
        alias = self.default if self.is_replica(alias) else alias
        return alias if alias in self.logs else ""


@contextmanager
def at_database(database: str) -> Iterator[None]:
    """Let an error in this block say on which database it was; "" where there is one only."""
    try:
        yield
    except (HorizonUnknown, LeaseLost, ConfigurationError) as error:
        if not database:
            raise
        kind = next(each for each in (HorizonUnknown, LeaseLost, ConfigurationError) if isinstance(error, each))
        raise kind(f"database {database!r}: {error}") from error
    except Error as error:
        if not database:
            raise
        raise DatabaseFailed(f"database {database!r}: {error}") from error


def of_django() -> Project:
    """Return the Django project of this process, set up by DJANGO_SETTINGS_MODULE if it is not set up yet.

    Raises ConfigurationError if there is none, or one without this app.
    """
    try:
        if not apps.ready:
            django.setup()
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"Spark needs the Django project: set DJANGO_SETTINGS_MODULE ({error})") from None
    if not apps.is_installed(APP):
        raise ConfigurationError(f"Spark needs {APP!r} in INSTALLED_APPS")
    return Project(
        default=queue_settings.home,
        databases={alias: dict(connections[alias].settings_dict) for alias in connections if _is_readable(alias)},
        options=dict(getattr(settings, "SQLQUEUE", {})),
        reading=str(queue_settings.READ_ALIAS or queue_settings.home),
        logs=queue_settings.aliases if queue_settings.several else (),
    )


def _is_readable(alias: str) -> bool:
    """Tell whether sqlqueue knows an alias's vendor, and its driver is installed."""
    try:
        return connections[alias].vendor in DIALECTS
    except ImproperlyConfigured:
        return False
