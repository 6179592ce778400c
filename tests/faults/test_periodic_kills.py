"""Consumer processes that publish ticks are killed again and again: each tick is in the log, and none twice."""

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from sqlqueue.models import Message, PeriodicSchedule
from tests.consumer_processes import QUICK, Consumers, heartbeats
from tests.processes import wait_until

pytestmark = [pytest.mark.long("sqlite"), pytest.mark.django_db(transaction=True)]

SCHEDULES = 20
KILLS = 3
EVERY = timedelta(seconds=1)


@pytest.fixture
def consumer_options(settings: Any) -> dict[str, Any]:
    schedules = {f"s{number}": {"every": 1, "topic": "ticks", "missed": "all"} for number in range(SCHEDULES)}
    settings.SQLQUEUE = {**QUICK, "SCHEDULES": schedules}
    return settings.SQLQUEUE


def count() -> int:
    return Message.objects.filter(topic="ticks").count()


def test_no_tick_is_lost_or_published_twice(consumers: Consumers) -> None:
    for _ in range(KILLS):
        killed, before = consumers.start("steady", processes=0), count()
        wait_until(lambda before=before: count() > before)
        killed.kill()  # when the first ticks of a second have come
    two = [consumers.start("steady", processes=0) for _ in range(2)]
    before = count()
    wait_until(lambda: len(heartbeats()) == KILLS + 2 and count() >= before + 2 * SCHEDULES)
    two[0].kill()
    before = count()
    wait_until(lambda: count() >= before + SCHEDULES)
    two[1].terminate()
    assert two[1].wait() == 0, two[1].output

    ids = list(Message.objects.filter(topic="ticks").values_list("message_id", flat=True))
    assert set(Counter(ids).values()) == {1}
    times: dict[str, list[datetime]] = {}
    for id in ids:
        name, _, due = id.partition("@")
        times.setdefault(name, []).append(datetime.fromisoformat(due.replace("Z", "+00:00")))
    assert len(times) == SCHEDULES
    for name, due in times.items():
        due.sort()
        assert {later - earlier for earlier, later in pairwise(due)} == {EVERY}, f"{name} has lost ticks"
        assert PeriodicSchedule.objects.get(name=name).last_tick == due[-1]
