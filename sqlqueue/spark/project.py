"""The parts of a Django project that Spark's processes need: its databases and its SQLQUEUE setting.

Spark plans a query in processes of its own, beside the driver. They get these with the pickled class of the data
source, so that no option, plan, log line or page of Spark's UI contains a password.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlqueue.core.keys import did_you_mean
from sqlqueue.database.dbapi import Access, access
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.spark.topics import Topics, TopicValues


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

    def is_replica(self, alias: str) -> bool:
        """Tell whether an alias is that of the replica that batch reads use."""
        return alias == self.reading and alias not in ("", self.default)

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
        database = self.databases[alias or self.default]
        # A process serves several queries, perhaps of several projects of one driver: an alias for each database.
        name = "spark-" + hashlib.sha256(pickle.dumps(sorted(database.items()))).hexdigest()[:16]
        connections.settings.setdefault(name, database)
        settings.SQLQUEUE = dict(self.options)
        from sqlqueue.conf import settings as queue_settings

        queue_settings.forget()
        return name


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

    if queue_settings.sharded:
        raise ConfigurationError(
            "Spark reads and writes one shard only, and SQLQUEUE['SHARDS'] has several: it is not built yet. Give it "
            "a settings module whose DATABASE is the shard's alias, without SHARDS"
        )
    aliases = [alias for alias in connections if _vendor(alias) in DIALECTS]
    databases = {alias: dict(connections[alias].settings_dict) for alias in aliases}
    options = dict(getattr(settings, "SQLQUEUE", {}))
    accesses = {alias: access(alias) for alias in aliases}
    topics, most_bytes = _topics(queue_settings), queue_settings.MAX_PAYLOAD_BYTES
    return Project(
        queue_settings.DATABASE, accesses, databases, options, topics, most_bytes, queue_settings.reading_alias
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
    return Topics(named, values(""), queue_settings.STRICT_TOPICS)
