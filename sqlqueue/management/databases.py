"""Which databases a command works on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.core.keys import did_you_mean
from sqlqueue.database.log import Log, all_logs, home_log, logs_of
from sqlqueue.models import Topic


def chosen(options: dict[str, Any], every: Collection[str], home: Collection[str]) -> list[Log]:
    """Return the logs that a command works on: the one that --database names; else those of its
    topic, if the operation may be done on several. every, home: the operations ("": a command without operations) that
    are done on all of them, or on DATABASE.

    Raises CommandError for a database without a log, and if one has to be named.
    """
    name, operation = options.get("database"), options.get("operation") or ""
    if name is not None:
        if name not in settings.aliases:
            hint = did_you_mean(name, settings.aliases)
            raise CommandError(f"--database {name}: neither DATABASE nor a topic's 'databases' name it.{hint}")
        return [Log.of(name)]
    if not settings.several or operation in home or options.get("id") is not None:  # where a message is is looked for
        return [home_log()]
    topic = options.get("topic")
    logs = logs_of(topic) if isinstance(topic, str) and topic else all_logs()
    if len(logs) == 1 or operation in every:
        return list(logs)
    raise CommandError(f"say on which database with --database: {', '.join(log.alias for log in logs)}")


def has_nothing_of(log: Log, topic: str, reading: Log | None = None) -> bool:
    """Tell whether a topic is on this database, and has no row there, for nothing of it has come to it yet. reading:
    the log to look with, if it is another."""
    if not settings.several or log not in logs_of(topic):
        return False
    return not Topic.objects.using((reading or log).alias).filter(name=topic).exists()
