"""`queuetopic alter NAME --partitions N`, as a process that is killed at any moment, and as an operator sees it."""

from __future__ import annotations

import html
import random
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.test import Client
from django.urls import reverse
from prometheus_client import CollectorRegistry, generate_latest

from sqlqueue import publish
from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.database import turning
from sqlqueue.log.layout_changes import KEYS, under_way
from sqlqueue.log.layouts import epochs
from sqlqueue.models import Layout, Message, Topic
from sqlqueue.monitoring.gauges import StatsCollector
from sqlqueue.operations.repartition import Repartition, begin
from sqlqueue.stats.attention import CHANGE_TAKES, findings
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.findings import CHANGE, NOTE, WARNING
from sqlqueue.stats.survey import survey
from tests.logs import LOG
from tests.management.running import run
from tests.operations.test_repartition import TOPIC, Publishers, check_order
from tests.processes import ManageCommands, wait_until
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

GATED = pytest.mark.database("mariadb", "mysql", "postgresql")
ALTER = ("queuetopic", "alter", TOPIC, "--partitions")


@pytest.fixture(autouse=True)
def topic() -> Topic:
    return Topic.objects.create(name=TOPIC, partitions=4)


def test_it_says_what_it_does() -> None:
    dry = run(*ALTER, "6", "--dry-run")
    assert "4 partitions become 6 others" in dry.out
    assert "Nothing was done." in dry.out
    assert run(*ALTER, "6").code == 3
    assert not Layout.objects.exists()
    done = run(*ALTER, "6", "--no-input")
    assert "has 6 partitions" in done.out, done
    assert [one.partitions for one in epochs(LOG, TOPIC)] == [4, 6]
    assert "has 6 partitions already" in run(*ALTER, "6").err
    assert run("queuestatus").out.split(TOPIC)[1].split()[0] == "6"


@GATED
def test_a_consumer_process_carries_on_what_was_left() -> None:
    begin(LOG, TOPIC, 6)
    Repartition(LOG).step()
    collector = CollectorTask(LOG, 60, 30)
    wait_until(lambda: collector.run_once() or under_way(LOG) is None)
    assert Layout.objects.get(end__isnull=False).epoch == 0
    assert publish(TOPIC, 1, key="a").offset


@pytest.mark.database("mariadb", "mysql")
def test_a_consumer_process_waits_for_a_row_that_is_hardly_ever_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes once in COLLECT_INTERVAL, and may find the row held each time by the next transaction."""
    waits, switch = threading.Event(), turning.switch

    def watched(*switched: Any) -> int:
        if switched[-1]:
            waits.set()
        return switch(*switched)

    def collect() -> None:
        CollectorTask(LOG, 60, 30).run_once()
        connections.close_all()

    monkeypatch.setattr(turning, "switch", watched)
    monkeypatch.setattr(turning, "WAIT", 60)
    collector = threading.Thread(target=collect)
    with OpenTransaction() as holder:
        holder.do(lambda: publish(TOPIC, 1, key="a"))
        begin(LOG, TOPIC, 6)
        collector.start()
        waited = waits.wait(30)
        holder.commit()
    collector.join()
    assert waited
    assert under_way(LOG) is None


@GATED
def test_it_is_carried_on_by_running_it_again() -> None:
    with OpenTransaction() as old:
        old.do(lambda: publish(TOPIC, 1, key="a"))
        begin(LOG, TOPIC, 6)
        for _ in range(5):
            Repartition(LOG).step()
        for how in ("--no-input", "--dry-run"):
            refused = run(*ALTER, "7", how)
            assert "are being changed" in refused.err
            assert "become" not in refused.out
        old.commit()
    assert "carried on" in run(*ALTER, "6", "--no-input").out
    assert under_way(LOG) is None


@pytest.mark.database("mariadb", "mysql")
def test_what_is_left_of_a_change_whose_keys_have_gone_over_is_done_before_the_next_one() -> None:
    begin(LOG, TOPIC, 6)
    steps = Repartition(LOG)
    while (change := under_way(LOG)) is not None and change.going:
        steps.step()
    assert change is not None
    first = f"What is left of the change of topic '{TOPIC}' is done first."
    dry = run(*ALTER, "8", "--dry-run").out
    assert first in dry
    assert "6 partitions become 8 others" in dry
    assert under_way(LOG) == change
    done = run(*ALTER, "8", "--no-input")
    assert first in done.out
    assert "has 8 partitions" in done.out, done
    assert [one.partitions for one in epochs(LOG, TOPIC)] == [4, 6, 8]


@pytest.mark.database("mariadb", "mysql")
def test_a_dry_run_tells_whether_it_can_be_aborted() -> None:
    abort = ("queuetopic", "alter", TOPIC, "--abort", "--dry-run")
    assert "nothing to abort" in run(*abort).err
    change = begin(LOG, TOPIC, 6)
    assert "can stay with its 4 partitions" in run(*abort).out
    assert under_way(LOG) == change
    steps = Repartition(LOG)
    while (progress := steps.step()) is not None and progress.stage != KEYS:
        pass
    assert "have gone over" in run(*abort).err


@GATED
@pytest.mark.long
def test_killed_at_any_moment_while_many_publish(manage: ManageCommands) -> None:
    """Nothing is lost or out of order, no publisher is held up, and the last run of the command ends the change."""
    dice = random.Random(7)
    with Publishers(3) as publishers, OpenTransaction() as slow:
        wait_until(lambda: publishers.published > 20)
        slow.do(lambda: publish(TOPIC, 1, key="slow"))
        kills = 0
        while kills < 6:
            command = manage(*ALTER, "6", "--no-input")
            command.wait_for_line("partitions become|has 6 partitions already")
            time.sleep(dice.random() * 0.5)
            command.kill()
            kills += 1
            if kills == 3:
                before = publishers.published
                wait_until(lambda before=before: publishers.published > before + 10)
                slow.commit()
        if under_way(LOG) is not None:
            command = manage(*ALTER, "6", "--no-input")
            assert command.wait() == 0, command.output
        wait_until(lambda: Message.objects.filter(partition__gte=4).count() > 50)
    check_order(2)


def test_one_that_is_under_way_is_shown_with_what_carries_it_on(admin_client: Client) -> None:
    """On SQLite there is nothing to be seen: it is done at once."""
    assert "being changed" not in run("queuestatus").out
    change = begin(LOG, TOPIC, 6)
    if change is None:
        return
    status = run("queuestatus").out
    page = html.unescape(admin_client.get(reverse("admin:sqlqueue_topic_change", args=[topic_id()])).content.decode())
    for text in (
        f"The keys of {TOPIC} go over from 4 partitions to 6 others.",
        "transactions that have published",
        f"python manage.py queuetopic alter {TOPIC} --partitions 6",
    ):
        assert text in status
        assert text in page
    assert [one.severity for one in findings(survey(LOG)) if one.kind == CHANGE] == [NOTE]
    Layout.objects.update(created_at=F("created_at") - timedelta(seconds=2 * CHANGE_TAKES))
    assert [one.severity for one in findings(survey(LOG)) if one.kind == CHANGE] == [WARNING]
    recent_survey.forget()
    metrics = CollectorRegistry()
    metrics.register(StatsCollector())
    assert f'sqlqueue_topic_change_age_seconds{{database="",topic="{TOPIC}"}} 12' in generate_latest(metrics).decode()
    assert ("--abort" in page) == LOG.dialect.slotted
    run(*ALTER, "6", "--no-input")
    assert "being changed" not in run("queuestatus").out


def topic_id() -> int:
    return Topic.objects.get(name=TOPIC).pk
