"""What is told of a topic of several epochs, and of a group that is in an earlier one."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F, Max

from sqlqueue import publish
from sqlqueue.log import groups
from sqlqueue.log.topics import stored
from sqlqueue.models import Message, Offset, Topic
from sqlqueue.operations.move import preview as preview_move
from sqlqueue.operations.topics import preview
from sqlqueue.stats import group_attention
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import AWAY, EPOCH, Kind
from sqlqueue.stats.search import Tail, by_key, newest
from sqlqueue.stats.survey import Survey, survey, survey_with_partitions
from tests import epochs
from tests.logs import LOG
from tests.progress import keys_of_partitions

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def two_epochs(settings) -> None:
    """Four messages in the four partitions of the first epoch, and four of the same keys in the second."""
    settings.SQLQUEUE = {"PARTITIONS": 4, "WAKE": False}
    groups.register(LOG, "g", "t")
    for key in keys_of_partitions(4):
        publish("t", {}, key=key)
    epochs.alter("t", 6)
    for key in keys_of_partitions(4):
        epochs.publish_into("t", {}, key)
    groups.start_all(LOG, "t")


def settle_the_first() -> None:
    end = Message.objects.filter(partition__lt=4).aggregate(last=Max("offset"))["last"]
    for partition in range(4):
        marks = {"position": end, "offset_acked": end, "claimed_to": end, "fencing_token": 0}
        Offset.objects.create(topic="t", consumer_group="g", partition=partition, **marks)
    groups.start_all(LOG, "t")


def kinds(seen: Survey) -> set[Kind]:
    return {one.kind for one in findings(seen) if one.group == "g"}


def test_where_a_group_is() -> None:
    seen = survey(LOG)
    (group,), (topic,) = seen.groups, seen.topics
    assert (topic.partitions, topic.epoch) == (6, 1)
    assert (group.lag, group.partitions, group.unowned) == (8, 10, 4), "what waits has no owner to be missed"
    assert group.waiting_partitions == 6
    settle_the_first()
    (group,) = survey(LOG).groups
    assert (group.waiting_partitions, group.lag) == (0, 4)


def test_its_partitions() -> None:
    stats = survey_with_partitions(LOG, "t", "g")[1]
    assert {one.partition for one in stats if one.waits} == set(range(4, 10))
    assert sum(one.lag for one in stats) == 8


def test_a_group_that_holds_an_epoch_for_long_is_found() -> None:
    assert EPOCH not in kinds(survey(LOG))
    Message.objects.update(created_at=F("created_at") - timedelta(seconds=2 * group_attention.EPOCH_HELD))
    assert {EPOCH, AWAY} <= kinds(survey(LOG))
    settle_the_first()
    assert EPOCH not in kinds(survey(LOG))


def test_what_waits_is_not_stuck() -> None:
    Message.objects.update(created_at=F("created_at") - timedelta(hours=1))
    (group,) = survey(LOG).groups
    assert {stuck.partition for stuck in group.stuck} == {0, 1, 2, 3}


def told(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def test_the_status() -> None:
    status = told("queuestatus")
    assert "epoch 1" in status
    assert "6 wait for an earlier epoch" in status


def test_the_log_is_followed_over_epochs() -> None:
    topic = Topic.objects.get()
    assert len(Tail(LOG, topic, 0).read()) == 8
    (key, *_) = keys_of_partitions(4)
    assert [message.partition for message in Tail(LOG, topic, 0, key=key).read() if message.partition_key == key] == [
        0,
        epochs.epochs("t")[1].partition_of(key),
    ]
    assert told("queuetail", "t", "--from", "earliest", "--no-follow", f"--key={key}").count(key) == 2


def test_an_epoch_that_begins_is_followed() -> None:
    tail = Tail(LOG, Topic.objects.get(), 0)
    assert len(tail.read()) == 8
    epochs.alter("t", 2)
    offset = epochs.publish_into("t", {}, "new")
    assert [message.offset for message in tail.read()] == [offset]


def test_keys_are_found_in_every_epoch() -> None:
    topic = stored(LOG, "t")
    assert topic is not None
    assert len(newest(LOG, topic, 100)) == 8
    for key in keys_of_partitions(4):
        found = by_key(LOG, topic, key, 10)
        assert found.offsets == sorted(Message.objects.filter(partition_key=key).values_list("offset", flat=True))[::-1]


def test_previews_count_every_epoch() -> None:
    assert preview_move(LOG, "g", "t", 0).above == 8
    assert preview(LOG, "t").messages == 8


def test_one_partition_is_named_by_its_own_number() -> None:
    (message,) = Message.objects.filter(partition=epochs.epochs("t")[1].partition_of(keys_of_partitions(4)[0]))[:1]
    assert message.message_id in told(
        "queuetail", "t", "--from", "earliest", "--no-follow", f"--partition={message.partition}", "--json"
    )
    with pytest.raises(CommandError, match="the partitions 0 to 3, 4 to 9, not 10"):
        call_command("queuetail", "t", "--no-follow", "--partition=10")
