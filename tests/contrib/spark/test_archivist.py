"""The archivist, as far as it needs no Spark: what it holds survives its connections."""

from datetime import timedelta

import pytest

from sqlqueue import publish
from sqlqueue.contrib.spark.archivist import GROUP, archivist
from sqlqueue.contrib.spark.manifest import MESSAGES
from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.log.groups import register
from sqlqueue.models import PartitionLease
from tests.factories import now
from tests.logs import LOG
from tests.servers.processlist import end_this_threads_connection


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_segment_counts_though_its_writing_took_longer_than_an_idle_connection_lasts(transactional_db: None) -> None:
    offset = publish("t", 1).offset
    with archivist(LOG, "t", timeout=30) as keeper:
        end_this_threads_connection()
        keeper.commit(
            MESSAGES,
            1,
            offset,
            lambda: None,
            row_count=1,
            lowest=offset,
            highest=offset,
            checksum="",
            schema_version=1,
            path="",
            files=0,
            bytes=0,
        )
        end_this_threads_connection()
    assert ArchiveSegment.objects.frontier("t") == offset
    assert not PartitionLease.objects.exclude(holder="").exists()


def test_what_an_archivist_held_before_the_clock_was_set_back_is_taken(transactional_db: None, settings) -> None:
    """No consumer process need run where topics are archived."""
    settings.SQLQUEUE = {"LEASE_DURATION": 1.0, "HEARTBEAT_INTERVAL": 0.3}
    offset = publish("t", 1).offset
    register(LOG, GROUP, "t")
    PartitionLease.objects.update(holder="gone", fencing_token=3, valid_until=now() + timedelta(hours=2))
    with archivist(LOG, "t", timeout=20) as keeper:
        assert keeper.held_in(MESSAGES, 1, offset)[0] == 1
        assert set(PartitionLease.objects.values_list("fencing_token", flat=True)) == {4}
