"""Every statement about batches uses an index."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue.contrib.batches import collect, ends, members
from sqlqueue.contrib.batches.effect import MEMBERS
from sqlqueue.contrib.batches.members import Member
from sqlqueue.contrib.batches.models import Batch, BatchPart
from sqlqueue.contrib.batches.status import statuses
from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.partition.ref import HeldLease, PartitionRef
from tests.database.plans import Recorder, an_index_if_there_is_one, full_scans
from tests.database.statistics import analyze
from tests.database.test_explain import recorder, topics  # noqa: F401  fixtures
from tests.factories import now
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.usefixtures("topics")
def test_batches_and_members_are_found_by_an_index(recorder: Recorder, settings: Any) -> None:  # noqa: F811
    over = {"sealed_at": now(), "finished_at": now(), "ended_at": now(), "over": True}
    Batch.objects.bulk_create(
        [
            Batch(
                id=f"{n:032x}", parent=f"{n + 5_000:032x}", callbacks={}, **(over if n % 50 else {"sealed_at": now()})
            )
            for n in range(1_000)
        ]
    )
    BatchPart.objects.bulk_create(
        [
            BatchPart(
                batch=f"{n % 1_000:032x}", part=n, topic=f"t{n % 40}", consumer_group="g", members=7, outstanding=0
            )
            for n in range(20_000)
        ]
    )
    Batch.objects.filter(id=f"{1:032x}").update(ended_at=now() - timedelta(days=1))
    analyze("sqlqueue_batch", "sqlqueue_batch_part")
    one, headers = Batch.objects.get(id=f"{50:032x}"), Member(f"{50:032x}", 50).headers
    recorder.statements.clear()
    with connection.execute_wrapper(recorder):
        lease = HeldLease(PartitionRef("g", "t10", 0, 0), 1, 2)
        with transaction.atomic():
            groups = members.groups_of(LOG, "t10")
            members.add(LOG, "t10", groups, [(Member(one.id, 1_000_000), "")])
            MEMBERS.settle(LOG, [EffectWrite(lease, 1, 1, MEMBERS, True, headers)])
            MEMBERS.withdrawn(LOG, "t10", "g", [headers])
            MEMBERS.withdrawn(LOG, "t10", "", [headers])
            MEMBERS.returned(LOG, "t10", "g", [headers])
            MEMBERS.group_removed(LOG, "t39", "g")
        statuses(LOG, [one.id])
        ends.check(LOG, [one.id])
        ends.sweep(LOG)
        ends.cancel(LOG, one.id)
        settings.SQLQUEUE_BATCHES = {"RETENTION": 3600}
        assert collect.collect(LOG) == 1
    statements = [found for found in recorder.statements.values() if "sqlqueue_batch" in found[0]]
    assert len(statements) >= 10
    with an_index_if_there_is_one():
        for sql, params in statements:
            assert not full_scans(sql, params), sql
