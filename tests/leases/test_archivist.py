"""The archivist, as far as it needs no Spark: what it holds survives its connections."""

import pytest

from sqlqueue import publish
from sqlqueue.leases.archivist import archivist
from sqlqueue.models import ArchiveSegment, PartitionLease
from sqlqueue.models.archive_segment import MESSAGES
from tests.servers.processlist import end_this_threads_connection


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_segment_counts_though_its_writing_took_longer_than_an_idle_connection_lasts(transactional_db: None) -> None:
    offset = publish("t", 1).offset
    with archivist("default", "t", patience=30) as keeper:
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
