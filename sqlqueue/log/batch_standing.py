"""How batches stand: what they wait for, and what is settled of it. Reads only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import BooleanField, Case, Count, Q, Sum, Value, When

from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.models import Batch, BatchGroup, BatchPart, BatchProgress, ConsumerGroup

AT_ONCE = 100  # batches of one read


@dataclass(slots=True)
class Share:
    """The members of a batch that one group settles in one topic: how many there are, how many dead letters were
    delivered again, and how often one was acked, and became a dead letter."""

    added: int = 0
    replayed: int = 0
    acked: int = 0
    dead: int = 0

    @property
    def settled(self) -> bool:
        """Whether the group has settled all of them."""
        return self.acked + self.dead >= self.added + self.replayed

    @property
    def failed(self) -> int:
        """How many are dead letters that were not replayed."""
        return max(0, self.dead - self.replayed)


@dataclass(slots=True)
class Standing:
    """A batch as the tables have it. shares: by (topic, group); unclaimed: members of topics that no group is
    registered for, by topic; unfinished, unsuccessful, failed_inside: how many batches inside it are so; late: its
    deadline has passed."""

    batch: Batch
    late: bool = False
    shares: dict[tuple[str, str], Share] = field(default_factory=dict)
    unclaimed: dict[str, int] = field(default_factory=dict)
    unfinished: int = 0
    unsuccessful: int = 0
    failed_inside: int = 0
    to_list: list[tuple[str, str]] = field(default_factory=list)  # (topic, group): groups that are not listed yet

    @property
    def total(self) -> int:
        """How many members there are, once for each group that settles them."""
        return sum(share.added for share in self.shares.values()) + sum(self.unclaimed.values())

    @property
    def done(self) -> int:
        """How many of them are acked. One that is read again after the batch was over is acked twice."""
        return sum(max(0, min(share.acked, share.added)) for share in self.shares.values())

    @property
    def failed(self) -> int:
        """How many of them are dead letters."""
        return sum(share.failed for share in self.shares.values())

    @property
    def overdue(self) -> bool:
        """Whether its deadline has passed before it was finished."""
        return self.late and self.batch.finished_at is None

    @property
    def settled(self) -> bool:
        """Whether it is sealed, and everything that was published of it is settled."""
        settled = all(share.settled for share in self.shares.values())
        return self.batch.sealed_at is not None and settled and not self.unclaimed and not self.unfinished

    @property
    def acked(self) -> bool:
        """Whether it is settled, and nothing of it is a dead letter."""
        return self.settled and not self.failed and not self.unsuccessful

    @property
    def to_go_on(self) -> bool:
        """Whether the next step of its chain is to be published."""
        return bool(self.batch.callbacks.get("then")) and self.acked

    @property
    def finished(self) -> bool:
        """Whether everything in it is settled, and it has no further step, or one step has failed."""
        return self.settled and not self.to_go_on

    @property
    def succeeded(self) -> bool:
        """Whether it is finished, and nothing of it is a dead letter."""
        return self.finished and self.acked


def standings(log: Log, ids: Sequence[str]) -> dict[str, Standing]:
    """Return how these batches stand, by id; unknown ones are left out. alias: of DATABASE, or its replica.

    Six statements for each AT_ONCE batches. Their order matters. The batches come first: what was added before one was
    sealed is seen. What is settled comes before what was added: a member that adds others is not settled before they
    are seen.
    """
    found: dict[str, Standing] = {}
    for start in range(0, len(ids), AT_ONCE):
        found.update(_standings(log, ids[start : start + AT_ONCE]))
    return found


def _standings(log: Log, ids: Sequence[str]) -> dict[str, Standing]:
    late = Case(
        When(deadline_at__lte=DatabaseNow(), then=Value(True)), default=Value(False), output_field=BooleanField()
    )
    found = {
        one.id: Standing(one, one.late) for one in Batch.objects.using(log.alias).filter(id__in=ids).annotate(late=late)
    }
    if not found:
        return {}
    acked, dead = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for batch, topic, group, some_acked, some_dead in _progress(log, list(found)):
        acked[batch, topic, group] += int(some_acked)
        dead[batch, topic, group] += int(some_dead)
    for parent, unfinished, unsuccessful, failed in _children(log, list(found)):
        one = found[parent]
        one.unfinished, one.unsuccessful, one.failed_inside = unfinished, unsuccessful, failed
    added, replayed = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for batch, topic, target, new, again in _parts(log, list(found)):
        added[batch, topic, target], replayed[batch, topic, target] = int(new), int(again)
    listed: dict[tuple[str, str], set[str]] = defaultdict(set)
    rows = BatchGroup.objects.using(log.alias).filter(batch__in=list(found))
    for batch, topic, group in rows.values_list("batch", "topic", "consumer_group"):
        listed[batch, topic].add(group)
    topics = sorted({topic for _, topic, _ in added})
    registered: dict[str, list[ConsumerGroup]] = defaultdict(list)
    for one in ConsumerGroup.objects.using(log.alias).filter(topic__in=topics):
        registered[one.topic].append(one)
    settling: dict[tuple[str, str], set[str]] = defaultdict(set)
    for batch, topic, group in acked:
        settling[batch, topic].add(group)
    for (batch, topic, target), new in added.items():
        again, known = replayed[batch, topic, target], (listed[batch, topic], settling[batch, topic])
        _add(found[batch], topic, target, new, again, *known, registered.get(topic, []))
    for batch, topic, group in acked:
        if (share := found[batch].shares.get((topic, group))) is not None:
            share.acked, share.dead = acked[batch, topic, group], dead[batch, topic, group]
    return found


def _progress(log: Log, ids: Sequence[str]) -> list[Any]:
    rows = BatchProgress.objects.using(log.alias).filter(batch__in=ids).values_list("batch", "topic", "consumer_group")
    return list(rows.annotate(Sum("acked"), Sum("dead")).order_by())


def _children(log: Log, ids: Sequence[str]) -> Any:
    going = Q(cancelled_at=None)
    return (
        Batch.objects.using(log.alias)
        .filter(parent__in=ids)
        .values_list("parent")
        .annotate(
            unfinished=Count("id", filter=going & Q(finished_at=None)),
            unsuccessful=Count("id", filter=going & Q(succeeded_at=None)),
            failed=Count("failed_at"),
        )
        .order_by()
    )


def _parts(log: Log, ids: Sequence[str]) -> list[Any]:
    rows = BatchPart.objects.using(log.alias).filter(batch__in=ids).values_list("batch", "topic", "target_group")
    return list(rows.annotate(Sum("added"), Sum("replayed")).order_by())


def _add(
    standing: Standing,
    topic: str,
    target: str,
    new: int,
    again: int,
    listed: set[str],
    settling: set[str],
    registered: list[ConsumerGroup],
) -> None:
    """Add what one thread has added of a topic to the shares of the groups that settle it.

    Of the groups that are registered those count that a batch has listed; as long as there is none, those that see its
    messages: they begin with the whole log, or were registered before the batch was made. Without these, those that
    have settled some: they were registered before these were published.
    """
    present = {one.consumer_group for one in registered}
    if target:
        groups = {target}
    elif not (groups := listed & present):
        begun = standing.batch.created_at
        groups = {one.consumer_group for one in registered if not one.start or one.created_at <= begun}
        standing.to_list += [(topic, group) for group in sorted(groups)]
        groups = groups or settling & present  # not listed: a later one may see more of them
    if not groups and new:
        standing.unclaimed[topic] = standing.unclaimed.get(topic, 0) + new
    for group in groups:
        share = standing.shares.setdefault((topic, group), Share())
        share.added += new
        share.replayed += again
