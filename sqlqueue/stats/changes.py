"""Which changes of topics' partitions and shards are under way, and how far each shard is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlqueue.conf import settings
from sqlqueue.core.shards import Spread, as_stored, lists_from, lists_text, spread_from
from sqlqueue.database.statements import dialect, execute
from sqlqueue.log.change_state import Change, may_abort, standing, under_way
from sqlqueue.log.reshard_state import has_ended, names_taking_part, stored_spread
from sqlqueue.models import Layout, Topic
from sqlqueue.stats.other_shards import SILENT, NotKnown, OtherShards

# Stages of a shard beside those of log.change_state and other_shards.
UNANNOUNCED: Final = "unannounced"
DONE: Final = "done"

# Index: the layouts' unique key.
BEGAN = "SELECT MIN({left}) FROM sqlqueue_layout WHERE topic = %s AND epoch = %s"


@dataclass(frozen=True, slots=True)
class ChangeOnShard:
    """How far a shard is: `left` of `of` parts of a stage are left; age: seconds since it has announced the
    change, None if it has not, or that is not known. shard: "" without SHARDS. error: with which it could not be asked,
    "" if it was, or does not answer."""

    shard: str
    stage: str
    left: int
    of: int
    age: float | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ChangeSurvey:
    """A change of a topic's partitions or shards that is under way, on DATABASE's shard or the one that was surveyed.

    before, after: the number of partitions, or the names of the shards, with commas between them; of_shards: which of
    both. command: what carries it on. may_abort: it is known that it can be taken back still. age: seconds since the
    first shard has announced it, None if none that answers has.
    """

    before: str
    after: str
    of_shards: bool
    command: str
    may_abort: bool
    age: float | None
    on_shards: tuple[ChangeOnShard, ...]


def changes(alias: str, topics: Iterable[Topic], shards: OtherShards) -> dict[str, ChangeSurvey]:
    """Return the changes that are under way, by topic. topics: those of `stats.topics.topics_of`. Nothing is read while
    there are none. DATABASE's shard knows of all shards of a topic, each other one of itself."""
    knows_all = alias == settings.home or settings.is_replica(alias)
    found, here = {}, None
    for topic in topics:
        spread = spread_from(topic.shards)
        if knows_all and settings.sharded and spread.coming is not None:
            found[topic.name] = _of_shards(topic.name, spread, shards)
        elif topic.turning:  # type: ignore[attr-defined]
            here = here or under_way(alias)
            if here is not None and here.topic == topic.name:
                found[topic.name] = _here(alias, here, shards)
    return found


def _of_shards(topic: str, spread: Spread, others: OtherShards) -> ChangeSurvey:
    lists = lists_text(spread.all_lists)
    on_shards = tuple(_on_shard(name, topic, lists, spread.closing, others) for name in names_taking_part(spread))
    after = as_stored(spread.coming or ())
    age = max((one.age for one in on_shards if one.age is not None), default=None)
    return ChangeSurvey(
        as_stored(spread.present), after, True, _command(topic, "shards", after), not spread.closing, age, on_shards
    )


def _command(topic: str, option: str, value: str) -> str:
    return f"python manage.py queuetopic alter {topic} --{option} {value}"


def _on_shard(name: str, topic: str, lists: str, closing: bool, others: OtherShards) -> ChangeOnShard:
    alias = settings.shards.get(name)
    found = others.ask(alias, _answered, alias, topic, lists, closing) if alias else NotKnown(SILENT)
    return _not_known(name, found) if isinstance(found, NotKnown) else found


def _not_known(shard: str, found: NotKnown) -> ChangeOnShard:
    return ChangeOnShard(shard, found.why, 0, 0, None, found.error)


def _answered(alias: str, topic: str, shards: str, closing: bool) -> ChangeOnShard:
    name = settings.shard_name(alias)
    newest = Layout.objects.using(alias).filter(topic=topic).order_by("generation").last()
    if newest is None or newest.shards != shards:
        return ChangeOnShard(name, UNANNOUNCED, 0, 0, None)
    age = _age(alias, topic, newest.epoch)
    change = None if has_ended(alias, topic, shards) else under_way(alias)
    if change is None or change.topic != topic:
        return ChangeOnShard(name, DONE, 0, 0, age)
    return ChangeOnShard(name, *standing(alias, change, closing), age)


def _here(alias: str, change: Change, others: OtherShards) -> ChangeSurvey:
    """A change as its own shard's tables say; whether keys may go over to other shards only DATABASE's knows."""
    of_shards = bool(change.shards)
    closing, unknown = False, list[ChangeOnShard]()
    if of_shards:
        *_, former, later = lists_from(change.shards)
        before, after = as_stored(former), as_stored(later)
        spread = others.ask(settings.home, stored_spread, settings.home, change.topic)
        if isinstance(spread, NotKnown):
            unknown.append(_not_known(settings.shard_name(settings.home), spread))
        else:
            closing = spread.closing or spread.coming is None
    else:
        before, after = str(change.earlier.partitions), str(change.later.partitions)
    age = _age(alias, change.topic, change.later.epoch)
    return ChangeSurvey(
        before,
        after,
        of_shards,
        _command(change.topic, "shards" if of_shards else "partitions", after),
        not (closing or unknown) if of_shards else may_abort(alias, change),
        age,
        (ChangeOnShard(settings.shard_name(alias), *standing(alias, change, closing), age), *unknown),
    )


def _age(alias: str, topic: str, epoch: int) -> float:
    """Return for how many seconds a shard has had an epoch, by its own clock."""
    left = execute(alias, BEGAN.format(left=dialect(alias).remaining("created_at")), (topic, epoch)).fetchone()[0]
    return max(0.0, -float(left or 0))
