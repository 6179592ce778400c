"""Which groups may not start yet what has come from other shards, and why: a former shard has not granted it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sqlqueue.conf import settings
from sqlqueue.core.epochs import Epoch
from sqlqueue.core.shards import SEPARATOR
from sqlqueue.database.statements import dialect, execute
from sqlqueue.log.grants import BEHIND, UNREGISTERED, obstacle
from sqlqueue.models import EpochStart, Topic
from sqlqueue.stats.other_shards import FAILED, SILENT, NotKnown, OtherShards

__all__ = ["BEHIND", "FAILED", "SILENT", "UNREGISTERED", "Ungranted", "ungranted"]

# Since when a group is registered, and a list of shards is known here. Index: the unique keys.
REGISTERED = "SELECT {left} FROM sqlqueue_consumer_group WHERE topic = %s AND consumer_group = %s"
KNOWN = "SELECT MIN({left}) FROM sqlqueue_layout WHERE topic = %s AND shards = %s"


@dataclass(frozen=True, slots=True)
class Ungranted:
    """A former shard that does not let a group start what has come from there.

    why: the group is "unregistered" there, which no process mends by itself; it is "behind" there, and settles that
    first; keys are still "turning" there; or that is not known, for the shard is "silent", or has "failed" with an
    error. age: for how many seconds at most.
    """

    shard: str
    why: str
    age: float
    error: str = ""


def ungranted(
    alias: str, epochs: Mapping[str, tuple[Epoch, ...]], groups: Iterable[tuple[str, str]], shards: OtherShards
) -> dict[tuple[str, str], tuple[Ungranted, ...]]:
    """Return what each of these (topic, group) of a shard waits for. epochs: of topics whose partitions or shards were
    changed. One statement for each topic with keys from other shards, which are asked only about groups that wait
    for them."""
    here = settings.shard_name(settings.DATABASE if settings.is_replica(alias) else alias)
    found: dict[tuple[str, str], tuple[Ungranted, ...]] = {}
    for topic, its in epochs.items():
        needed = {
            epoch.version: (epoch.sources(here) & {*settings.shards}, epoch.shards)
            for epoch in its
            if epoch.version and epoch.is_on(here)
        }
        if not any(sources for sources, _ in needed.values()):
            continue
        rows = EpochStart.objects.using(alias).filter(topic=topic)
        columns = rows.values_list("consumer_group", "version", "granted")
        granted = {(group, version): {*text.split(SEPARATOR)} for group, version, text in columns}
        for group in [group for other, group in groups if other == topic]:
            missing = {
                (version, shard): lists
                for version, (sources, lists) in needed.items()
                for shard in sources - granted.get((group, version), set())
            }
            if missing:
                found[topic, group] = tuple(_waits(alias, topic, group, missing, shards))
    return found


def _waits(
    alias: str, topic: str, group: str, missing: Mapping[tuple[int, str], str], shards: OtherShards
) -> Iterator[Ungranted]:
    """Yield each shard once, for the oldest version that it has not granted."""
    told: set[str] = set()
    for version, shard in sorted(missing):
        if shard in told:
            continue
        target = settings.shards[shard]
        found = shards.ask(target, _why, target, topic, group, version)
        why, error = found if isinstance(found, NotKnown) else (found, "")
        if why:
            told.add(shard)
            yield Ungranted(shard, why, _age(alias, topic, group, missing[version, shard]), error)


def _why(alias: str, topic: str, group: str, version: int) -> str:
    exists = Topic.objects.using(alias).filter(name=topic).exists()
    return obstacle(alias, group, topic, version) if exists else ""


def _age(alias: str, topic: str, group: str, lists: str) -> float:
    """Return for how long a group has waited at most: since it was registered, or the shard has known of the change."""
    left = dialect(alias).remaining("created_at")
    registered = execute(alias, REGISTERED.format(left=left), (topic, group)).fetchone()
    known = execute(alias, KNOWN.format(left=left), (topic, lists)).fetchone()
    return max(0.0, min(-float(row[0] or 0) if row else 0.0 for row in (registered, known)))
