"""The parts of a Django project that Spark's processes need, its databases and its SQLQUEUE setting, and Django there.

Spark plans a query in processes of its own, beside the driver, and carries it out in those of the executors. All of
them get these parts pickled inside of the data source, so that no option, plan, log line or page of Spark's UI contains
a password.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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

    default: str  # DATABASE
    databases: Mapping[str, dict[str, Any]] = field(repr=False)  # settings_dict of Django's connections
    options: Mapping[str, Any] = field(repr=False)  # SQLQUEUE
    reading: str = ""  # the alias of batch reads; "": default
    logs: tuple[str, ...] = ()  # the aliases of the databases that have a log; (): default

    @property
    def several(self) -> bool:
        """Whether there are several logs."""
        return len(self.logs) > 1

    def is_replica(self, alias: str) -> bool:
        """Tell whether an alias is that of the replica that batch reads use."""
        return alias == self.reading and alias not in ("", self.default)

    def sources(self, options: SourceOptions, reading: str = "") -> dict[str, str]:
        """Return the aliases to read, by the databases that they are shown as: the one that the options name, or all.
        reading: the alias to read instead of DATABASE. Raises ConfigurationError for one that there is not."""
        if options.database:
            if options.database not in self.databases:
                hint = did_you_mean(options.database, self.databases)
                raise ConfigurationError(f"DATABASES has no alias {options.database!r} for sqlqueue.{hint}")
            return {options.database: options.database}
        logs = sorted(self.logs or (self.default,))
        return {alias: reading or alias if alias == self.default else alias for alias in logs}

    def engine(self, alias: str = "") -> Log:
        """Set up Django in this process, one of Spark's, with these databases and this SQLQUEUE; return the log of one
        of the databases. Raises ConfigurationError if the process has set up a Django without this app."""
        _set_up()
        _use(self.databases, self.options)
        return Log.of(alias or self.default)

    @contextmanager
    def task(self, alias: str = "") -> Iterator[Log]:
        """Do so for one task of an executor, and yield the log. The process may run the user's own code as well: a
        Django that is not of this module's making has its databases and its SQLQUEUE again at the end."""
        made_here = _set_up()
        before = dict(connections.settings), getattr(settings, "SQLQUEUE", {})
        try:
            yield self.engine(alias)
        finally:
            connections.close_all()
            if not made_here:
                _use(*before)

    def placed(self, sources: Mapping[str, str], topics: Iterable[str]) -> dict[str, list[str]]:
        """Return which of the topics are on each database that has one; all of a read that names no topic. Only after
        engine()."""
        names = list(topics)
        if not self.several or not names:
            return dict.fromkeys(sources, names)
        on = {
            database: [
                name for name in names if database not in self.logs or database in queue_settings.databases_of(name)
            ]
            for database in sources
        }
        return {database: some for database, some in on.items() if some}

    @contextmanager
    def at(self, database: str) -> Iterator[None]:
        """Let an error in this block say on which of several databases it was."""
        try:
            yield
        except (HorizonUnknown, LeaseLost, ConfigurationError, Error) as error:
            if not self.several:
                raise
            kinds = (HorizonUnknown, LeaseLost, ConfigurationError)
            kind = next((each for each in kinds if isinstance(error, each)), DatabaseFailed)
            raise kind(f"database {database!r}: {error}") from error


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
        default=queue_settings.DATABASE,
        databases={alias: dict(Log.of(alias).connection.settings_dict) for alias in connections if _is_readable(alias)},
        options=dict(getattr(settings, "SQLQUEUE", {})),
        reading=str(queue_settings.READ_ALIAS or queue_settings.DATABASE),
        logs=queue_settings.aliases,
    )


def _is_readable(alias: str) -> bool:
    """Tell whether sqlqueue knows an alias's vendor, and its driver is installed."""
    try:
        return Log.of(alias).connection.vendor in DIALECTS
    except ImproperlyConfigured:
        return False


def _set_up() -> bool:
    """Set up Django in this process, that which DJANGO_SETTINGS_MODULE names, unless it is; tell whether it is one
    without a project, made here. Raises ConfigurationError if it has not this app."""
    if not settings.configured and not os.environ.get("DJANGO_SETTINGS_MODULE"):
        settings.configure(
            DATABASES={"default": {}},
            INSTALLED_APPS=["django.contrib.contenttypes", "sqlqueue", APP],
            TIME_ZONE="UTC",
            LOGGING_CONFIG=None,
            USE_TZ=True,
            SQLQUEUE_WITHOUT_PROJECT=True,
        )
    if not apps.ready:
        django.setup()
    if not apps.is_installed(APP):
        raise ConfigurationError(f"this process of Spark's has a Django without {APP}: add it to INSTALLED_APPS there")
    return hasattr(settings, "SQLQUEUE_WITHOUT_PROJECT")


def _use(databases: Mapping[str, dict[str, Any]], options: Mapping[str, Any]) -> None:
    """Let this process have these databases under their aliases, and this SQLQUEUE."""
    from sqlqueue.log.topics import forget_topics

    for alias, database in databases.items():
        if connections.settings.get(alias) != database:
            if alias in connections.settings:
                Log.of(alias).disconnect()
            connections.settings[alias] = database
            Log.of.cache_clear()  # what is remembered of a log is of another database
    settings.SQLQUEUE = options
    queue_settings.forget()
    forget_topics()
