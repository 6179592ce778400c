"""Work items that are done are deleted with their audit trail once their retention is over, and never before."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.contrib.people import effect, work
from sqlqueue.contrib.people.exceptions import WorkItemChanged
from sqlqueue.contrib.people.models import WorkItem, WorkItemEvent
from tests.contrib.people.test_work import item_of
from tests.logs import LOG
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)


def done(days: float) -> WorkItem:
    """Make an item that was done so many days ago."""
    item = item_of("plain", message_offset=WorkItem.objects.count() + 1)
    work.finish(item.pk, 0, "bob", {})
    WorkItem.objects.filter(pk=item.pk).update(finished_at=timezone.now() - timedelta(days=days))
    return item


def test_without_the_setting_they_are_kept_for_ever() -> None:
    done(40_000)
    assert effect.collect(LOG) == 0
    assert WorkItemEvent.objects.count() == 1


def test_what_is_done_for_so_long_goes_with_its_events_and_nothing_else(settings: Any) -> None:
    settings.SQLQUEUE_PEOPLE = {"RETENTION": timedelta(days=30)}
    old = timezone.now() - timedelta(days=100)
    done(31)
    stay = [done(29), item_of("plain", handed_over_at=old), item_of("refunds", message_offset=9, state="review")]
    work.add_comment(stay[1].pk, "bob", "still open")
    CollectorTask(LOG, 0, 30).run_once()
    assert set(WorkItem.objects.values_list("pk", flat=True)) == {item.pk for item in stay}
    assert set(WorkItemEvent.objects.values_list("item_id", flat=True)) == {item.pk for item in stay[:2]}


def test_so_many_at_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect, "AT_ONCE", 2)
    monkeypatch.setattr(effect, "MOST_AT_ONCE", 4)
    settings.SQLQUEUE_PEOPLE = {"RETENTION": 0}
    for _ in range(5):
        done(1)
    assert [effect.collect(LOG) for _ in range(3)] == [4, 1, 0]


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_one_that_is_being_commented_on_waits_for_the_next_time(settings: Any) -> None:
    settings.SQLQUEUE_PEOPLE = {"RETENTION": 0}
    item = done(1)
    with OpenTransaction() as other:
        other.do(lambda: work.add_comment(item.pk, "ann", "wait"))
        assert effect.collect(LOG) == 0
        other.commit()
    assert WorkItemEvent.objects.count() == 2
    assert effect.collect(LOG) == 1
    with pytest.raises(WorkItemChanged):
        work.add_comment(item.pk, "ann", "too late")
