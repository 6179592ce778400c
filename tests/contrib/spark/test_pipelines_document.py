"""What docs/pipelines.md shows runs, in its order, on a small log."""

import shlex
from pathlib import Path

import pytest
from django.core.management import call_command
from pyspark.sql import SparkSession

from sqlqueue import NewMessage, publish_many
from sqlqueue.contrib.spark.models import ArchiveSegment, HourlyStatistic
from sqlqueue.log.groups import register
from sqlqueue.models import Message
from tests.consuming import QUICK
from tests.contrib.spark.archiving import rows_in
from tests.documents import ROOT, blocks
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

PLACES = {"/var/lib/lake": "lake", "flights-*.csv": "flights.csv"}
CSV = """\
tailnum,carrier,flight,date,scheduled,delay
N1,UA,1,2013-01-31,2013-01-31 05:15:00,2
N1,UA,2,2013-01-31,2013-01-31 09:00:00,NA
NA,B6,3,2013-01-31,2013-01-31 10:00:00,7
"""


def test_the_blocks_of_the_page_run(spark: SparkSession, tmp_path: Path, settings) -> None:
    settings.SQLQUEUE = dict(QUICK)
    (tmp_path / "flights.csv").write_text(CSV)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "flights.csv").write_text(CSV)
    publish_many("flights", [NewMessage({"n": n}, key=str(n)) for n in range(4)])
    register(LOG, "billing", "flights")
    names = {"spark": spark, "folder": str(tmp_path / "lake")}
    commands = 0
    for block in blocks(ROOT / "docs" / "pipelines.md"):
        if block.mark == "spark":
            exec(compile(block.text, str(block), "exec"), names)
        for command in block.commands if block.language == "console" and block.mark != "shown" else ():
            _, manage, *words = shlex.split(command)
            assert manage == "manage.py"
            call_command(
                *(word.replace(word, str(tmp_path / PLACES[word])) if word in PLACES else word for word in words)
            )
            commands += 1
    assert commands == 11
    archived = {row["offset"] for row in rows_in(tmp_path / "lake")}
    assert len(archived) == 4
    assert ArchiveSegment.objects.of("flights").count() == 1
    assert HourlyStatistic.objects.get(topic="flights", consumer_group="").published == 4
    backfilled = Message.objects.filter(message_id__startswith="UA|").values_list("message_id", "partition_key")
    names_of = ("UA|1|2013-01-31", "UA|2|2013-01-31", "UA|1", "UA|2")  # by the command, and by the functions
    assert set(backfilled) == {(name, "N1") for name in names_of}
    assert names["again"].count() == 4
