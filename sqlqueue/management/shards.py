"""Which shards a command works on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.core.keys import did_you_mean
from sqlqueue.log.placement import existing_placement
from sqlqueue.models import Topic


def chosen(options: dict[str, Any], every: Collection[str], home: Collection[str]) -> list[str]:
    """Return the aliases of the shards that a command works on: the one that --shard names; else those of its topic,
    if the operation may be done on several. every, home: the operations ("": a command without operations) that are
    done on all shards, or on DATABASE's.

    Raises CommandError for a shard that there is not, and if one has to be named.
    """
    name, operation = options.get("shard"), options.get("operation") or ""
    if name is not None:
        if name not in settings.shards:
            hint = did_you_mean(name, settings.shards) or " SQLQUEUE has no SHARDS."
            raise CommandError(f"--shard {name}: there is no such shard.{hint}")
        return [settings.shards[name]]
    if not settings.sharded or operation in home or options.get("id") is not None:  # a message's shard is looked for
        return [settings.home]
    aliases = _of_topic(options.get("topic"))
    if len(aliases) == 1 or operation in every:
        return aliases
    names = ", ".join(settings.shard_name(alias) for alias in aliases)
    raise CommandError(f"say on which shard with --shard: {names}")


def _of_topic(topic: object) -> list[str]:
    if isinstance(topic, str) and topic and (placed := existing_placement(topic)) is not None:
        return [settings.shards[name] for name in placed.shards]
    return list(settings.aliases)


def has_nothing_of(alias: str, topic: str, reading: str = "") -> bool:
    """Tell whether a topic is on this shard, and has no row there, for nothing of it has come to it yet. reading: the
    alias to look with, if it is another."""
    if not settings.sharded or (placed := existing_placement(topic)) is None:
        return False
    here = settings.shard_name(alias) in placed.shards
    return here and not Topic.objects.using(reading or alias).filter(name=topic).exists()
