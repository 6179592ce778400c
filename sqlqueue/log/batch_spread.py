"""Which shards have members of batches, and asking those that answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.database import retries
from sqlqueue.models import BatchPart

Answer = TypeVar("Answer")


class Spread:
    """The shards of some batches. home: the alias of DATABASE's shard, or of its replica. unanswered: the names of
    shards that do not answer, by batch."""

    def __init__(self, home: str, ids: Sequence[str]):
        self.unanswered: dict[str, set[str]] = {}
        self._home = settings.shard_name(settings.home)
        self._aliases = {**settings.shards, self._home: home}
        self._batches: dict[str, dict[str, None]] = {self._home: dict.fromkeys(ids)}  # by shard

    @property
    def others_first(self) -> dict[str, list[str]]:
        """The batches of each shard but DATABASE's, by its name; a shard before the one that names it first."""
        return {shard: list(ids) for shard, ids in reversed(self._batches.items()) if shard != self._home}

    def has(self, batch: str, shard: str) -> bool:
        """Tell whether a shard is one of those of a batch."""
        return batch in self._batches.get(shard, ())

    def add(self, batch: str, shard: str) -> None:
        """Record that a shard has members of a batch, or counts of them."""
        self._batches.setdefault(shard, {})[batch] = None
        if shard not in self._aliases:  # SHARDS does not name it any more
            self._miss(shard, [batch])

    def each(
        self, ask: Callable[[str, list[str]], Answer], batches: Mapping[str, Collection[str]] | None = None
    ) -> list[Answer]:
        """Return what `ask`, called with alias and batches, returns for each shard; batches: for these shards,
        about these. One that does not answer is left out, but for DATABASE's, which has to."""
        answers = []
        for shard, of_shard in list((self._batches if batches is None else batches).items()):
            ids = [id for id in of_shard if shard not in self.unanswered.get(id, ())]
            if not ids:
                continue
            alias = self._aliases[shard]
            try:
                answers.append(ask(alias, ids))
            except Error as error:
                if shard == self._home or not retries.unreachable(alias, error):
                    raise
                self._miss(shard, ids)
        return answers

    def _miss(self, shard: str, ids: Collection[str]) -> None:
        for id in ids:
            self.unanswered.setdefault(id, set()).add(shard)


def spread(home: str, ids: Sequence[str]) -> Spread:
    """Return the shards of some batches: DATABASE's, and those that the shards found so far name; one statement for
    each. Without SHARDS none."""
    found = Spread(home, ids)
    if not settings.sharded:
        return found
    new: dict[str, list[str]] = {settings.shard_name(settings.home): list(ids)}
    while new:
        named = {pair for pairs in found.each(_named, new) for pair in pairs}
        new = {}
        for batch, shard in sorted(named):
            if not found.has(batch, shard):
                found.add(batch, shard)
                new.setdefault(shard, []).append(batch)
    return found


def _named(alias: str, ids: Sequence[str]) -> list[tuple[str, str]]:
    rows = BatchPart.objects.using(alias).filter(batch__in=ids).exclude(shard="")
    return list(rows.values_list("batch", "shard").distinct().order_by())
