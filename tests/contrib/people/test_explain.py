"""Every statement about work items uses an index."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue.contrib.people import effect, work
from sqlqueue.contrib.people.effect import WORK_ITEMS, HandedOver, collect
from sqlqueue.contrib.people.models import WorkItem, WorkItemEvent
from sqlqueue.contrib.people.survey import open_work, own_work
from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.partition.ref import HeldLease, PartitionRef
from sqlqueue.database.horizon import highest_offset
from tests.database.plans import Recorder, an_index_if_there_is_one, full_scans
from tests.database.statistics import analyze
from tests.database.test_explain import recorder, topics  # noqa: F401  fixtures
from tests.factories import now
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.usefixtures("topics")
def test_work_items_are_found_by_an_index(recorder: Recorder, settings: Any) -> None:  # noqa: F811
    each = {"topic": "t", "consumer_group": "g", "fencing_token": 1, "attempts": 1, "payload": 1, "published_at": now()}
    rows = [
        WorkItem(
            **each,
            message_id=f"{number}",
            message_offset=number + 1_000_000,
            state="open" if number % 100 == 0 else "done",
            assignee=f"user{number % 50}" if number % 300 else "",
            due_at=now() + timedelta(hours=number - 1000) if number % 2 else None,
            finished_at=now() + timedelta(hours=number - 1000) if number % 100 else None,
        )
        for number in range(4_000)
    ]
    WorkItem.objects.bulk_create(rows)
    WorkItemEvent.objects.bulk_create(
        [
            WorkItemEvent(item_id=pk, kind="commented", made_by="ann")
            for pk in WorkItem.objects.values_list("pk", flat=True)
        ]
    )
    analyze("sqlqueue_work_item", "sqlqueue_work_item_event")
    recorder.statements.clear()
    offset = highest_offset(LOG)
    with connection.execute_wrapper(recorder):
        lease = HeldLease(PartitionRef("g", "t", 0, 0), 1, 2)
        with transaction.atomic():
            effect.write(LOG, lease, [EffectWrite(lease, offset, 1, WORK_ITEMS, HandedOver("", None))])
        item = WorkItem.objects.get(message_offset=offset, fencing_token=2)
        own_work(LOG, "user7", ["t"], ["many"])
        open_work(LOG, ["t"])
        work.add_comment(item.pk, "ann", "hm")
        work.finish(item.pk, 0, "ann", {})
        list(item.events.order_by("-pk")[:10])
        settings.SQLQUEUE_PEOPLE = {"RETENTION": 0}
        assert collect(LOG) > 0
    statements = [one for one in recorder.statements.values() if "work_item" in one[0]]
    assert len(statements) >= 10
    with an_index_if_there_is_one():
        for sql, params in statements:
            assert not full_scans(sql, params), sql
