"""With USE_TZ = False the queue still knows what time it is: its times are UTC, whatever Django makes of them."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from urllib.parse import urlencode

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client, override_settings
from django.utils.timezone import get_default_timezone

from sqlqueue import Delivery, publish
from sqlqueue.consumers.background.duties import OutcomeCounter, StatsRecorder
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.database.clock import moment
from sqlqueue.log.groups import register
from sqlqueue.models import Activity, ConsumerGroup
from tests.admin.test_overview import page, words
from tests.consuming import Consuming
from tests.factories import ActivityFactory
from tests.logs import LOG
from tests.management.running import run


@pytest.fixture(autouse=True)
def without(transactional_db: None) -> Iterator[None]:
    connections.close_all()
    with override_settings(USE_TZ=False, TIME_ZONE="America/New_York"):
        yield
        connections.close_all()
    connections.close_all()


def local(ago: timedelta) -> str:
    """A time as people on that site type it."""
    return f"{datetime.now(get_default_timezone()) - ago:%Y-%m-%dT%H:%M:%S}"


HOUR = timedelta(hours=1)


@pytest.mark.parametrize("word", ["ago", "local"])
def test_places_in_the_log_are_found_by_their_time(word: str, consuming: Consuming) -> None:
    before = "1h" if word == "ago" else local(HOUR)
    publish("t", "now")
    register(LOG, "g", "t")
    assert "now" in run("queuetail", "t", "--from", before, "--no-follow").out
    assert "now" not in run("queuetail", "t", "--from", local(-HOUR), "--no-follow").out
    assert run("queuegroup", "rewind", "t", "--from", before, "--group", "g", "--no-input").code == 0
    assert run("queuegroup", "skip", "t", "--group", "g", "--to", before, "--no-input").code == 0


def test_the_admin_searches_by_time_and_delivers_again_from_one(client: Client) -> None:
    client.force_login(get_user_model().objects.create_superuser("root"))
    offset = publish("t", 1, id="found").offset
    register(LOG, "g", "t")
    group = ConsumerGroup.objects.get().pk
    for since, shown in ((local(HOUR), True), (local(-HOUR), False)):
        asked = urlencode({"topic": "t", "since": since, "until": ""})
        assert ("found" in words(page(client, f"/admin/sqlqueue/message/?{asked}"))) is shown
    assert page(
        client, f"/admin/sqlqueue/consumergroup/{group}/operation/move/?{urlencode({'time': local(HOUR), 'count': 1})}"
    )
    assert offset


def test_a_delivery_knows_when_it_was_published(consuming: Consuming) -> None:
    seen: list[Delivery] = []
    consuming.consumer("t", seen.append)
    publish("t", 1)
    consuming.drain()
    [delivery] = seen
    assert abs(delivery.created_at - datetime.now(timezone.utc)) < timedelta(minutes=5)


def test_the_recorder_forgets_what_is_old() -> None:
    ActivityFactory(minute=datetime.now() - timedelta(days=30), acked=1)  # noqa: DTZ005
    StatsRecorder(LOG, OutcomeCounter()).run_once()
    assert not Activity.objects.exists()


def test_the_analytics_say_that_they_need_time_zones() -> None:
    with pytest.raises(CommandError, match="USE_TZ = True"):
        call_command("queueanalytics")


def test_a_work_item_is_put_off_until_the_time_that_the_person_says(client: Client) -> None:
    client.force_login(get_user_model().objects.create_superuser("root"))
    item = WorkItem.objects.create(
        topic="t",
        message_id="1",
        message_offset=1,
        consumer_group="g",
        fencing_token=1,
        attempts=1,
        payload=1,
        published_at=datetime.now(),  # noqa: DTZ005  as Django has it then
    )
    page_of_it = f"/admin/sqlqueue_people/workitem/{item.pk}/operation/later/?version=0"
    assert client.post(page_of_it, {"until": local(HOUR)}).status_code == 200, "it is over"
    assert client.post(page_of_it, {"until": local(-HOUR)}).status_code == 302
    epoch = LOG.dialect.epoch("deferred_until")
    for table in ("sqlqueue_work_item", "sqlqueue_work_item_event"):
        (stored,) = LOG.execute(f"SELECT {epoch} FROM {table}").fetchone()
        assert abs(moment(stored) - datetime.now(timezone.utc) - HOUR) < timedelta(minutes=1)
