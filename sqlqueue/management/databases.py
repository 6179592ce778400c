"""Which databases a command works on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.core.keys import did_you_mean
from sqlqueue.models import Topic


def chosen(options: dict[str, Any], every: Collection[str], home: Collection[str]) -> list[str]:
    """Return the aliases of the databases that a command works on: the one that --database names; else those of its
    topic, if the operation may be done on several. every, home: the operations ("": a command without operations) that
    are done on all of them, or on DATABASE.

    Raises CommandError for a database without a log, and if one has to be named.
    """
    name, operation = options.get("database"), options.get("operation") or ""
    if name is not None:
        if name not in settings.aliases:
            hint = did_you_mean(name, settings.aliases)
            raise CommandError(f"--database {name}: neither DATABASE nor a topic's 'databases' name it.{hint}")
        return [name]
    if not settings.several or operation in home or options.get("id") is not None:  # where a message is is looked for
        return [settings.home]
    topic = options.get("topic")
    aliases = list(settings.databases_of(topic) if isinstance(topic, str) and topic else settings.aliases)
    if len(aliases) == 1 or operation in every:
        return aliases
    raise CommandError(f"say on which database with --database: {', '.join(aliases)}")


def has_nothing_of(alias: str, topic: str, reading: str = "") -> bool:
    """Tell whether a topic is on this database, and has no row there, for nothing of it has come to it yet. reading:
    the alias to look with, if it is another."""
    if not settings.several or alias not in settings.databases_of(topic):
        return False
    return not Topic.objects.using(reading or alias).filter(name=topic).exists()
