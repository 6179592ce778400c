"""Fifty subscribers of one group at once, as where every host of many runs a consumer process."""

from collections import defaultdict
from contextlib import ExitStack

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.models import Message
from tests.consumer_processes import GROUP, holders
from tests.consuming import QUICK, states
from tests.processes import wait_until
from tests.progress import progress_of, wait_until_settled
from tests.subscribers import Handled, RunningSubscriber, consumer

pytestmark = pytest.mark.django_db(transaction=True)

SUBSCRIBERS, PARTITIONS, MESSAGES, KEYS = 50, 75, 2_000, 500


def test_two_thousand_messages_reach_fifty_subscribers_once_each_and_in_order(settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": PARTITIONS, "BALANCE_INTERVAL": 0.5, "IDLE_POLL_INTERVAL": 0.2}
    handled = [Handled() for _ in range(SUBSCRIBERS)]
    crowd = [
        RunningSubscriber(consumer("t", mine), name=f"s{number:02}", threads=1, background_tasks=not number)
        for number, mine in enumerate(handled)
    ]
    with ExitStack() as running:
        for subscriber in crowd:
            running.enter_context(subscriber)
        wait_until(lambda: sorted(holders("t").values()) == [1] * 25 + [2] * 25, message=lambda: f"{holders('t')}")
        for start in range(0, MESSAGES, 1_000):
            numbers = range(start, start + 1_000)
            publish_many("t", [NewMessage(n, key=f"k{n % KEYS}", id=str(n)) for n in numbers])
        wait_until_settled("t", GROUP)
    assert [seen.counts.total() for seen in handled if not seen.counts] == [], "some have handled nothing"
    assert sum(seen.counts.total() for seen in handled) == MESSAGES, progress_of("t", GROUP)
    # A partition that has moved was handled by one subscriber after the other.
    in_turn = [(int(ids[0]), key, ids) for seen in handled for key, ids in seen.ids_by_key().items()]
    by_key: dict[str, list[str]] = defaultdict(list)
    for _, key, ids in sorted(in_turn):
        by_key[key] += ids
    assert by_key == {f"k{key}": [str(n) for n in range(key, MESSAGES, KEYS)] for key in range(KEYS)}
    assert not Message.objects.dead_letters().exists()
    assert states("t") == []
