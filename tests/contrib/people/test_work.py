"""What people do with work items: one transaction with its event and its decision, and no two people decide one."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from sqlqueue import HandOver, InvalidMessage, publish
from sqlqueue.contrib.people import work, work_on
from sqlqueue.contrib.people.exceptions import WorkItemChanged
from sqlqueue.contrib.people.models import WorkItem, WorkItemEvent
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message
from tests.consuming import QUICK, Consuming
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)
OPTIONS = {
    **QUICK,
    "TOPICS": {"refunds": {}, "decided": {}, "plain": {}},
}


@pytest.fixture(autouse=True)
def _options(settings: Any, declared: Any) -> None:
    settings.SQLQUEUE = OPTIONS
    work_on("refunds", decisions="decided")


def item_of(topic: str = "refunds", **values: Any) -> WorkItem:
    given = {
        "topic": topic,
        "partition_key": "ann",
        "message_id": "r-1",
        "message_offset": 7,
        "consumer_group": "people",
        "fencing_token": 1,
        "attempts": 1,
        "payload": {"amount": 700},
        "published_at": timezone.now(),
        "reason": "over 500",
        **values,
    }
    return WorkItem.objects.get(pk=WorkItem.objects.create(**given).pk)


def events() -> list[tuple[str, str, str, str | None]]:
    rows = WorkItemEvent.objects.order_by("pk")
    return list(rows.values_list("kind", "made_by", "assignee", "comment"))


def now(item: WorkItem) -> tuple[str, str, int]:
    item.refresh_from_db()
    return item.state, item.assignee, item.version


def test_a_case_from_hand_to_hand() -> None:
    item = item_of()
    work.assign(item.pk, 0, "boss", "bob", comment="please")
    assert now(item) == ("open", "bob", 1)
    work.release(item.pk, 1, "bob")
    later = timezone.now() + timedelta(days=1)
    work.defer(item.pk, 2, "cy", later)
    assert now(item) == ("open", "cy", 3)
    assert item.deferred_until == later
    work.add_comment(item.pk, "dora", "I know her")
    work.submit(item.pk, 3, "cy", {"pay": 700}, "dora")
    assert now(item) == ("review", "dora", 4)
    assert (item.author, item.result, item.deferred_until) == ("cy", {"pay": 700}, None)
    work.send_back(item.pk, 4, "dora", comment="too much")
    assert now(item) == ("open", "cy", 5)
    work.submit(item.pk, 5, "cy", {"pay": 600})
    assert now(item) == ("review", "", 6)
    assert not Message.objects.exists()
    work.approve(item.pk, 6, "dora")
    assert now(item) == ("done", "cy", 7)
    assert item.finished_at is not None
    (decision,) = Message.objects.all()
    assert (decision.topic, decision.partition_key, decision.payload) == ("decided", "ann", {"pay": 600})
    about = decision.headers["work_item"]
    assert (about["id"], about["topic"], about["message_id"], about["offset"]) == (item.pk, "refunds", "r-1", 7)
    assert (about["reason"], about["author"], about["decided_by"]) == ("over 500", "cy", "dora")
    assert events() == [
        ("assigned", "boss", "bob", "please"),
        ("released", "bob", "", None),
        ("deferred", "cy", "cy", None),
        ("commented", "dora", "cy", "I know her"),
        ("submitted", "cy", "dora", None),
        ("sent back", "dora", "cy", "too much"),
        ("submitted", "cy", "", None),
        ("approved", "dora", "cy", None),
    ]
    assert WorkItemEvent.objects.filter(result={"pay": 600}).count() == 1


def test_done_at_once_by_whoever_takes_it() -> None:
    item = item_of()
    work.finish(item.pk, 0, "bob", {"pay": 1}, comment="clear")
    assert now(item) == ("done", "bob", 1)
    assert Message.objects.get().payload == {"pay": 1}
    assert events() == [("done", "bob", "bob", "clear")]


def test_a_topic_without_decisions_publishes_none() -> None:
    work.finish(item_of("plain").pk, 0, "bob", None)
    assert not Message.objects.exists()


CHANGES: dict[str, Callable[[int, int], None]] = {
    "assign": lambda pk, version: work.assign(pk, version, "bob", "cy"),
    "release": lambda pk, version: work.release(pk, version, "bob"),
    "defer": lambda pk, version: work.defer(pk, version, "bob", timezone.now() + timedelta(hours=1)),
    "submit": lambda pk, version: work.submit(pk, version, "bob", {}),
    "finish": lambda pk, version: work.finish(pk, version, "bob", {}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_meanwhile_or_is_done_is_not_changed(name: str) -> None:
    item = item_of(version=3)
    with pytest.raises(WorkItemChanged):
        CHANGES[name](item.pk, 2)
    with pytest.raises(WorkItemChanged):
        CHANGES[name](item.pk + 1, 3)
    WorkItem.objects.update(state="done")
    with pytest.raises(WorkItemChanged):
        CHANGES[name](item.pk, 3)
    assert (events(), Message.objects.count()) == ([], 0)


def test_of_two_people_who_decide_at_the_same_time_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read the version before either changes it."""
    item = item_of()
    both, ended = threading.Barrier(2), []
    plain = work._check_own

    def check(seen: WorkItem, by: str) -> None:
        if connection.vendor != "sqlite":  # whose second transaction begins when the first has ended
            both.wait(30)
        plain(seen, by)

    def decide(by: str) -> None:
        try:
            work.finish(item.pk, 0, by, {"by": by})
            ended.append(by)
        except WorkItemChanged:
            ended.append("refused")
        finally:
            connection.close()

    monkeypatch.setattr(work, "_check_own", check)
    threads = [threading.Thread(target=decide, args=[by]) for by in ("bob", "cy")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended, key="refused".__eq__)[1] == "refused"
    (event,) = events()
    assert Message.objects.get().payload == {"by": event[1]}


def test_a_decision_that_cannot_be_published_leaves_the_item_as_it_was(settings: Any) -> None:
    settings.SQLQUEUE = {**OPTIONS, "TOPICS": {**OPTIONS["TOPICS"], "decided": {"payload_type": int}}}
    item = item_of()
    with pytest.raises(InvalidMessage, match="does not fit"):
        work.finish(item.pk, 0, "bob", {"no": "number"})
    assert (now(item), events()) == (("open", "", 0), [])


@pytest.mark.parametrize(
    ("values", "change", "why"),
    [
        ({"assignee": "cy"}, lambda pk: work.finish(pk, 0, "bob", {}), "assigned to 'cy'"),
        ({"assignee": "cy"}, lambda pk: work.submit(pk, 0, "bob", {}), "assigned to 'cy'"),
        ({"state": "review"}, lambda pk: work.finish(pk, 0, "bob", {}), "in review"),
        ({}, lambda pk: work.approve(pk, 0, "bob"), "not in review"),
        ({"state": "review", "author": "bob"}, lambda pk: work.approve(pk, 0, "bob"), "another person"),
        ({"state": "review", "author": "bob"}, lambda pk: work.assign(pk, 0, "cy", "bob"), "another person"),
        ({"state": "review", "assignee": "cy"}, lambda pk: work.approve(pk, 0, "bob"), "assigned to 'cy'"),
        ({"state": "review"}, lambda pk: work.send_back(pk, 0, "bob", comment=" "), "why"),
        ({}, lambda pk: work.submit(pk, 0, "bob", {}, "bob"), "another person"),
        ({}, lambda pk: work.defer(pk, 0, "bob", timezone.now()), "future"),
        ({}, lambda pk: work.add_comment(pk, "bob", " "), "text"),
        ({}, lambda pk: work.add_comment(pk, "bob", "x" * 10_001), "comment"),
        ({}, lambda pk: work.assign(pk, 0, "bob", "x" * 151), "assignee"),
        ({}, lambda pk: work.assign(pk, 0, "x" * 151, "bob"), "user's name"),
        ({}, lambda pk: work.finish(pk, 0, "bob", {"at": object()}), "not JSON"),
    ],
)
def test_what_does_not_suit_is_refused(values: Any, change: Any, why: str) -> None:
    item = item_of(**values)
    before = now(item)
    with pytest.raises(InvalidMessage, match=why):
        change(item.pk)
    assert (now(item), events(), Message.objects.count()) == (before, [], 0)


def test_an_item_outlives_its_message() -> None:
    offset = publish("refunds", 1).offset
    item = item_of(message_offset=offset)
    Message.objects.all().delete()
    work.finish(item.pk, 0, "bob", {})
    assert now(item)[0] == "done"


def test_each_decision_is_published_whatever_else_the_topic_holds(
    consuming: Consuming, settings: Any, declared: dict[str, Any]
) -> None:
    """A topic of decisions that keeps one message of a key, and gets the notices too."""
    declared.clear()
    work_on("refunds", decisions="decided", notices="decided")
    settings.SQLQUEUE = {**OPTIONS, "TOPICS": {"refunds": {}, "decided": {"unique_for": 100}}}

    def handle(delivery: Any) -> None:
        raise HandOver

    consuming.consumer("refunds", handle)
    publish("refunds", 1, key="ann")
    publish("refunds", 2, key="ann")
    consuming.drain("default")
    move_due(LOG)
    for item in WorkItem.objects.all():
        work.finish(item.pk, 0, "bob", item.pk)
    payloads = [message.payload for message in Message.objects.filter(topic="decided")]
    decided = {payload for payload in payloads if isinstance(payload, int)}
    assert decided == set(WorkItem.objects.values_list("pk", flat=True))


def test_a_decision_that_would_be_left_out_is_refused() -> None:
    item = item_of()
    publish("decided", 1, key=item.partition_key, id=f"work-item-{item.pk}")
    with pytest.raises(InvalidMessage, match="already"):
        work.finish(item.pk, 0, "bob", {})
    assert (now(item), events()) == (("open", "", 0), [])


def test_the_decision_about_a_dead_letter_goes_where_its_topics_go() -> None:
    work.finish(item_of("refunds_dlq").pk, 0, "bob", {})
    assert Message.objects.get().topic == "decided"


class TestNotices:
    @pytest.fixture(autouse=True)
    def _noticed(self, settings: Any, declared: dict[str, Any]) -> None:
        declared.clear()
        work_on("refunds", decisions="decided", notices="told", teams=["cash"])
        settings.SQLQUEUE = {**OPTIONS, "TOPICS": {"refunds": {}, "decided": {}, "told": {}}}

    def test_whoever_should_know_is_told_by_a_message(self, settings: Any) -> None:
        item = item_of()
        work.assign(item.pk, 0, "boss", "bob", comment="please")
        work.add_comment(item.pk, "cy", "hm")
        work.finish(item.pk, 1, "bob", {})
        told = [message.payload for message in Message.objects.filter(topic="told").order_by("offset")]
        assert [(one["event"], one["by"], one["assignee"], one["comment"]) for one in told] == [
            ("assigned", "boss", "bob", "please"),
            ("commented", "cy", "bob", "hm"),
            ("done", "bob", "bob", ""),
        ]
        assert {(one["work_item"], one["reason"], tuple(one["teams"])) for one in told} == {
            (item.pk, "over 500", ("cash",))
        }

    def test_of_a_new_item_too_once_for_each(self, consuming: Consuming, settings: Any) -> None:

        def handle(delivery: Any) -> None:
            raise HandOver("look")

        consuming.consumer("refunds", handle)
        consuming.consumer("told", lambda delivery: None)
        publish("refunds", 1, key="ann", id="r-1")
        publish("refunds", 2, key="bea", id="r-2")
        consuming.drain("default")
        move_due(LOG)
        told = [message.payload for message in Message.objects.filter(topic="told").order_by("offset")]
        assert sorted((one["event"], one["message_id"], one["reason"]) for one in told) == [
            ("handed over", "r-1", "look"),
            ("handed over", "r-2", "look"),
        ]
        assert {one["work_item"] for one in told} == set(WorkItem.objects.values_list("pk", flat=True))
