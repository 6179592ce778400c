"""Balance: how many partitions of a group a subscriber should hold, and which it may take."""

from __future__ import annotations

from dataclasses import dataclass

from sqlqueue.core.share import excess, fair_share
from sqlqueue.leases.acquire import leases
from sqlqueue.models import SubscriberHeartbeat


@dataclass(frozen=True, slots=True)
class Balance:
    """What to do about one (group, topic): partitions to take, partitions to give up once they are drained, and
    partitions to free at once: the subscriber holds their leases, but neither knows nor wants them."""

    take: list[int]
    give_up: list[int]
    free: list[int]


def balance(alias: str, subscriber: str, group: str, topic: str, holding: set[int]) -> Balance:
    """Compare what a subscriber holds with its fair share. Two statements, however many partitions there are.

    Free and expired leases are taken up to the share; in a fixed order, which is turned by the subscriber's place so
    that several who start together do not all reach for the same ones.
    """
    beats = SubscriberHeartbeat.objects.using(alias).alive().filter(topic=topic, consumer_group=group)
    subscribers = sorted(beats.values_list("subscriber", flat=True))
    present = leases(alias, group, topic)
    share = fair_share(len(present), subscribers, subscriber, f"{group}/{topic}")
    # A lease of its own that it does not know of is to be had, too: the answer to its acquiring was lost, or the server
    # was restarted. It is renewed with the others; if its holder did not want it, nobody would ever serve it.
    unknown = {partition for partition, holder, _ in present if holder == subscriber and partition not in holding}
    free = [
        partition
        for partition, _, to_be_had in present
        if (to_be_had or partition in unknown) and partition not in holding
    ]
    if subscriber in subscribers and free:
        turn = subscribers.index(subscriber) * len(free) // len(subscribers)
        free = free[turn:] + free[:turn]
    take = free[: max(0, share - len(holding))]
    return Balance(take, excess(sorted(holding), share), sorted(unknown.difference(take)))
