"""How far groups are behind: exact up to a bound, and near it beyond that, whatever the log looks like."""

import json
import re
from collections.abc import Callable
from itertools import accumulate
from random import Random

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sqlqueue.database.log import Log
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup
from sqlqueue.operations.move import preview as preview_move
from sqlqueue.stats import counting
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.survey import survey, survey_with_partitions
from tests.factories import TopicFactory
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.django_db


def backlog(topic: str, *offsets: list[int]) -> None:
    """Put messages into the log, at these offsets of each partition, that a group has yet to read."""
    TopicFactory.create(name=topic, partitions=len(offsets))
    register(LOG, "g", topic)
    columns = ", ".join(map(connection.ops.quote_name, ("offset", "topic", "partition", "message_id", "payload")))
    rows = [
        (offset, topic, partition, f"{topic}{offset}", "1") for partition, its in enumerate(offsets) for offset in its
    ]
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO sqlqueue_message ({columns}) VALUES (%s, %s, %s, %s, %s)", rows)
    ConsumerGroup.objects.update(start=0)


def lags(only: str = "") -> dict[str, tuple[int, bool]]:
    return {one.topic: (one.lag, one.estimated) for one in survey(LOG, only).groups}


@pytest.mark.parametrize("more", [0, 300])
def test_lags_are_exact_up_to_a_bound_of_each_group(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(counting, "EXACT", 2_400)
    backlog("a", list(range(1, 300)), list(range(1_000, 1_201)))
    backlog("b", list(range(2_000, 4_200 + more)))
    backlog("c", list(range(10_000, 10_300)))
    seen = lags()
    assert lags("b") == {"b": seen["b"]}
    assert seen["a"] == (500, False)
    assert seen["c"] == (300, False)
    assert seen["b"] == (pytest.approx(2_200 + more, abs=more // 10), more > 0)
    assert sum(one.lag for one in survey_with_partitions(LOG, "b", "g")[1]) == seen["b"][0]


def test_where_many_groups_are_far_behind_each_is_counted_up_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "EXACT_OF_ALL", 3_000)
    for number in range(3):
        backlog(f"t{number}", list(range(10_000 * number + 1, 10_000 * number + 1_001 + (number == 2))))
    seen = lags()
    assert (seen["t0"], seen["t1"]) == ((1_000, False), (1_000, False))
    assert seen["t2"] == (pytest.approx(1_001, rel=0.2), True)
    assert lags("t2") == {"t2": (1_001, False)}


@pytest.mark.once
def test_a_hundred_thousand_are_counted_in_a_survey_of_all() -> None:
    assert counting.EXACT == 100_000
    offsets = [*range(1, 50_001), *range(300_001, 900_000, 12)]
    backlog("t", offsets[:70_000], offsets[70_000:])
    backlog("u", list(range(200_000, 300_000, 50)))
    assert lags() == {"t": (100_000, False), "u": (2_000, False)}
    assert preview_move(LOG, "g", "t", 0)[::3] == (100_000, False)


def bursts(of: Callable[[Random], int], between: int) -> list[int]:
    random = Random(7)
    steps: list[int] = []
    while len(steps) < MANY:
        steps += [random.randint(1, between), *[1] * of(random)]
    return list(accumulate(steps[:MANY]))


MANY = 4_000
SHAPES: dict[str, Callable[[], list[int]]] = {
    "denser and denser": lambda: [int(500_000 * (n / MANY) ** 0.3) for n in range(MANY)],
    "sparser and sparser": lambda: [int(500_000 * (n / MANY) ** 4) + n for n in range(MANY)],
    "a dense middle": lambda: [*range(0, 40_000, 100), *range(40_000, 43_200), *range(43_200, 163_200, 300)],
    "a dense end": lambda: [*range(0, 400_000, 500), *range(400_000, 403_200)],
    "a message long ago": lambda: [1, *range(10**9, 10**9 + MANY - 1)],
    "bulks": lambda: bursts(lambda random: 400, 50_000),
    "small bulks, far from each other": lambda: bursts(lambda random: 60, 6_000),
    "equal bulks": lambda: [n * 1_500 + m for n in range(MANY // 60) for m in range(60)],
    "bulks of every size": lambda: bursts(lambda random: random.choice([1, 10, 100, 1_000]), 2_000),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_beyond_that_a_skewed_log_is_told_within_a_fifth(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    for name, value in ("EXACT", 1_000), ("SAMPLE", 10), ("WINDOWS", 100):  # as a hundredth is of a large log's
        monkeypatch.setattr(counting, name, value)
    offsets = sorted({offset + 1 for offset in SHAPES[shape]()})
    backlog("t", offsets[::2], offsets[1::2])
    ((told, estimated),) = lags().values()
    assert estimated
    assert told == pytest.approx(len(offsets), rel=0.2)
    preview = preview_move(LOG, "g", "t", 0)
    assert preview.estimated
    assert preview.above == pytest.approx(len(offsets), rel=0.2)


def dense_end(messages: int) -> list[int]:
    return [*range(1, messages * 50, 500), *range(messages * 50, messages * 50 + messages * 9 // 10)]


BESIDE: dict[str, tuple[int, int, list[list[int]]]] = {
    # How many messages the group with the dense end has; partitions of each other one, and its offsets.
    "one of many partitions": (900, 64, [list(range(1, 1 + 64 * 150))]),
    "two hundred partitions": (360, 200, [list(range(1, 1 + 200 * 100))]),
    "thirty of every size": (2_500, 1, [list(range(1, 2 + each * 100, 2)) for each in range(1, 30)]),
    "thirty skewed ones": (3_000, 1, [dense_end(200 * each) for each in range(1, 30)]),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_every_group_is_told_within_a_fifth_whatever_else_is_behind(
    monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    for name, value in ("EXACT", 1_000), ("SAMPLE", 10), ("WINDOWS", 100), ("LEAST_WINDOWS", 20):
        monkeypatch.setattr(counting, name, value)
    many, partitions, others = BESIDE[beside]
    expected = {}
    for number, offsets in enumerate([dense_end(many), *others]):
        its, base = (partitions, number * 10**7) if number else (4, 0)
        backlog(f"t{number}", *[[base + offset for offset in offsets[one::its]] for one in range(its)])
        expected[f"t{number}"] = len(offsets)
    told = lags()
    assert {topic: lag for topic, (lag, _) in told.items()} == pytest.approx(expected, rel=0.2)
    assert all(estimated or lag == expected[topic] for topic, (lag, estimated) in told.items())


def test_a_survey_reads_a_bounded_number_of_messages_in_a_bounded_number_of_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ("EXACT", 500), ("WINDOWS", 80), ("LEAST_WINDOWS", 20), ("SAMPLE", 20), ("CLOSE", 0.0):
        monkeypatch.setattr(counting, name, value)
    for number in range(4):
        backlog(f"t{number}", list(range(1 + number * 10_000, 2_000 + number * 10_000)))
    read: list[tuple[int, int]] = []
    inner = counting._read

    def noted(log: Log, text: str, ranges: list[counting.Range], *most: int) -> list[tuple[int, int, int]]:
        found = inner(log, text, ranges, *most)
        read.append((len(ranges), sum(messages for messages, *_ in found)))
        return found

    monkeypatch.setattr(counting, "_read", noted)
    with CaptureQueriesContext(connection) as captured:
        seen = lags()
    assert sum(lag for lag, _ in seen.values()) == pytest.approx(4 * 1_999, rel=0.2)
    windows = [windows for windows, _ in read if windows > 4]
    assert windows == [20] * counting.ROUNDS * 4, "over each group, divided as often as that"
    assert sum(messages for _, messages in read) <= 4 * (500 + 2 + 20 * counting.ROUNDS * counting.SAMPLE)
    assert len([each for each in captured if "sqlqueue_message" in each["sql"] and "UNION" in each["sql"]]) <= 4 + 4 * 7


def test_an_estimate_is_marked_everywhere(monkeypatch: pytest.MonkeyPatch, admin_client: Client) -> None:
    monkeypatch.setattr(counting, "EXACT", 1_000)
    backlog("t", list(range(1, 3_000)))
    about = r"≈ ?(2[.,]?9\d\d|3[.,]?0\d\d)"
    for words in (("queuestatus",), ("queuepurge", "t", "--dry-run")):
        assert re.search(about, run(*words).out), words
    assert re.search(about, run("queuegroup", "skip", "t", "--group", "g", "--to", "latest", "--dry-run").out)
    (told,) = json.loads(run("queuestatus", "--json").out)["groups"]
    assert told["estimated"] is True
    recent_survey.forget()
    for page in ("overview/", f"consumergroup/{ConsumerGroup.objects.get().pk}/change/"):
        text = re.sub(r"<[^>]+>", "", admin_client.get(f"/admin/sqlqueue/{page}", follow=True).content.decode())
        assert re.search(about, text), page
