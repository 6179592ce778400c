"""How far the change of a topic's shards is, on each of them.

The topic's row on DATABASE's shard decides: its keys are to go over to other shards (it may be aborted), or may have
gone over: once every shard, former or later, lets publishers know of that before they publish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.shards import Spread, lists_text, spread_from
from sqlqueue.database import retries, turning
from sqlqueue.database.statements import dialect
from sqlqueue.models import EpochSlot, Layout, Topic

T = TypeVar("T")


class Readiness(NamedTuple):
    """left: how many `of` the shards are not ready yet; aborted: they need not be any more."""

    left: int
    of: int
    aborted: bool = False


def stored_spread(alias: str, topic: str) -> Spread:
    """Return what a shard's row of a topic says of its shards; nothing if there is none."""
    return spread_from(Topic.objects.using(alias).filter(name=topic).values_list("shards", flat=True).first() or "")


def taking_part(spread: Spread) -> list[str]:
    """Return the aliases of the shards of a change that is under way: the new ones first."""
    return [settings.shards[name] for name in names_taking_part(spread)]


def names_taking_part(spread: Spread) -> list[str]:
    """Return the names of the same."""
    former, coming = spread.present, spread.coming or ()
    return sorted({*coming} - {*former}) + sorted(former)


def replace_spread(alias: str, topic: str, before: Spread, after: Spread) -> bool:
    """Change what a shard's row of a topic says of its shards, if that is still as it was."""
    rows = Topic.objects.using(alias).filter(name=topic, shards=before.stored())
    return bool(rows.update(shards=after.stored()))


def ready(topic: str, shards: str) -> Readiness:
    """Tell whether keys of a topic may go over by these lists of shards (see core.shards); say so for good if every
    shard is ready. A shard that does not answer is not."""
    home = settings.home
    spread = answering(home, stored_spread, home, topic)
    if spread is None:
        return Readiness(1, 1)
    if lists_text(spread.all_lists) != shards:
        return Readiness(0, 0, aborted=True)
    aliases = taking_part(spread)
    if spread.closing or spread.coming is None:
        return Readiness(0, len(aliases))
    left = sum(not answering(alias, is_announced, alias, topic, shards) for alias in aliases)
    if left == 0 and not replace_spread(home, topic, spread, spread._replace(closing=True)):
        left = 1  # it was aborted, or another process was faster: the next look tells
    return Readiness(left, len(aliases))


def answering(alias: str, ask: Callable[..., T], *args: Any) -> T | None:
    """Ask a shard; None if it does not answer."""
    try:
        return ask(*args)
    except Error as error:
        if retries.classify(error) is not retries.ErrorKind.GONE:
            raise
        retries.drop_connection(alias)
        return None


def is_announced(alias: str, topic: str, shards: str) -> bool:
    """Tell whether all publishers of a shard know of the later epoch by these lists of shards, or learn of it before
    they publish."""
    newest = Layout.objects.using(alias).filter(topic=topic).order_by("generation").last()
    if newest is None or newest.shards != shards:
        return False
    if newest.phase == Layout.STEADY:
        return True
    if dialect(alias).slotted:
        return not turning.gate_rows_behind(alias, newest.generation)
    return turning.newest_generation(alias) >= newest.generation


def has_ended(alias: str, topic: str, shards: str) -> bool:
    """Tell whether all keys of a shard have gone over by these lists of shards, and the end of what came before is
    known."""
    newest = Layout.objects.using(alias).filter(topic=topic).order_by("generation").last()
    if newest is None or newest.shards != shards or newest.phase != Layout.STEADY:
        return False
    return not EpochSlot.objects.using(alias).filter(topic=topic).exists()
