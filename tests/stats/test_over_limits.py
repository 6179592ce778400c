"""However little is looked at with one statement, everything is seen; and where counting ends, that is said."""

import re
import struct
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.test import Client
from factory import Iterator, Sequence

from sqlqueue import Delivery, NewMessage, Reject, Retry, publish_many
from sqlqueue.core.partition import window
from sqlqueue.database.log import Log
from sqlqueue.management import doctor
from sqlqueue.models import Activity, ConsumerGroup
from sqlqueue.monitoring.shared_metrics import SharedMetrics
from sqlqueue.operations import move
from sqlqueue.stats import counting, throughput
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.survey import survey
from tests.admin.test_overview import page, words
from tests.consuming import QUICK, Consuming
from tests.factories import ActivityFactory, ScheduledMessageFactory, in_an_hour
from tests.management.running import run

ALIAS, GROUPS = "default", ("a", "b", "c")
PARTITIONS, KEYS, OF_A_KEY = 3, 12, 4


@pytest.fixture
def failing(consuming: Consuming, settings: Any) -> None:
    """Three groups of two topics each: of every key one message fails, the rest waits behind it; some are dead."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": PARTITIONS}

    def fail(delivery: Delivery) -> None:
        if delivery.key == "dead":
            raise Reject("no")
        raise Retry(delay=3600)

    for topic in ("t", "u"):
        for group in GROUPS:
            consuming.consumer(topic, fail, group=group)
        publish_many(topic, [NewMessage(n, key=f"k{n % KEYS}") for n in range(KEYS * OF_A_KEY)])
        publish_many(topic, [NewMessage(n, key="dead") for n in range(5)])
    consuming.drain()


def figures() -> list[Any]:
    seen = survey(Log.of(ALIAS))
    groups = [
        (one.lag, one.failing, one.waiting, one.dead_letters, {(stuck.partition, stuck.why) for stuck in one.stuck})
        for one in seen.groups
    ]
    return [*groups, move.preview(Log.of(ALIAS), "a", "t", 0)]


def test_a_survey_of_many_statements_sees_what_there_is(failing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "HEADS_LIMIT", 1)
    monkeypatch.setattr(counting, "AT_ONCE", 1)
    every = {(partition, "full") for partition in range(PARTITIONS)}
    group = (KEYS * OF_A_KEY, KEYS, KEYS * (OF_A_KEY - 1), 5, every)
    whole = KEYS * OF_A_KEY + 5
    assert figures() == [group] * 6 + [move.MovePreview(whole, whole, 0, False)]


def of(group: str) -> GroupSurvey:
    found = survey(Log.of(ALIAS)).group("t", group)
    assert found is not None
    return found


def test_where_the_counting_of_what_waits_ends_the_lag_is_told_to_be_estimated(
    failing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MOST_ROWS", KEYS)
    assert (of("a").estimated, of("a").lag) == (False, KEYS * OF_A_KEY)
    monkeypatch.setattr(counting, "MOST_ROWS", KEYS - 1)
    assert of("a").estimated
    assert 0 < of("a").lag < KEYS * OF_A_KEY


def test_where_the_counting_of_dead_letters_and_schedules_ends_is_said(
    failing: None, monkeypatch: pytest.MonkeyPatch, admin_client: Client
) -> None:
    ScheduledMessageFactory.create_batch(8, topic=Iterator(["t", "u"]), due_at=in_an_hour())
    for most, dead_letters, waiting in ((16, {"5"}, ["4", "4"]), (1, {"1+", "0+"}, ["1+", "0+"])):
        monkeypatch.setattr(counting, "MOST_ROWS", most)
        said = run("queuestatus").out
        assert set(re.findall(r"^[tu] +[abc] .* (\d+\+?) +\d+\.\d +", said, re.MULTILINE)) == dead_letters
        assert re.findall(r"^[tu] +3 +1 +7 d +failures +\S+ +(\S+) +0", said, re.MULTILINE) == waiting
        html = words(page(admin_client))
        for text in (
            *dead_letters,
            *(f"≥ {one[:-1]} scheduled" if "+" in one else f"· {one} scheduled" for one in waiting),
        ):
            assert f" {text} " in html, text
        group = ConsumerGroup.objects.get(topic="t", consumer_group="c")
        shown = words(page(admin_client, f"/admin/sqlqueue/consumergroup/{group.pk}/change/"))
        assert any(f"Dead letters {count} " in shown for count in dead_letters)


@pytest.mark.django_db(transaction=True)
def test_everything_that_is_old_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "FORGOTTEN_AT_ONCE", 2)
    now = datetime.now(timezone.utc)
    minutes = [now - timedelta(days=8, minutes=n) for n in range(7)]
    ActivityFactory.create_batch(8, minute=Iterator([now, *minutes]))
    throughput.forget(Log.of(ALIAS))
    assert Activity.objects.get().minute == now


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("refused", "more"), [(2, False), (3, True)])
def test_the_doctor_says_that_more_was_refused(monkeypatch: pytest.MonkeyPatch, refused: int, more: bool) -> None:
    monkeypatch.setattr(doctor, "MOST_REFUSALS", 2)
    ScheduledMessageFactory.create_batch(refused, topic=Sequence("{}!".format), refused=True, refusal="no")
    texts = [finding.text for finding in doctor.refusals(doctor.Diagnostics(Log.of(ALIAS), []))]
    assert len([text for text in texts if "was refused: no" in text]) == 2
    assert ("more were refused" in texts) == more


@pytest.mark.django_db(transaction=True)
def test_figures_that_cannot_be_read_are_no_figures_and_come_back() -> None:
    shared = SharedMetrics()
    try:
        assert b"sqlqueue_" in shared.exposition()
        unfinished = shared.folder / "counter_1.db"
        unfinished.touch()
        with pytest.raises((struct.error, RuntimeError)):
            shared.exposition()
        unfinished.unlink()
        assert b"sqlqueue_" in shared.exposition()
    finally:
        shared.remove()
