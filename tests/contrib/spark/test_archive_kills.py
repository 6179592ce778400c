"""`kill -9` of the archiving driver, its Java and its workers, at any moment: each message is archived exactly once.

ARCHIVE_KILLS=50 kills so often: by turns in one of the segments of a run that has made progress, and at any moment of
its life, so also while it starts, or removes what the one before it has left.
"""

import json
import os
import random
import time
from pathlib import Path

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.database.horizon import Horizon
from sqlqueue.log.collect import collect
from sqlqueue.models import Message
from tests.consuming import QUICK
from tests.contrib.spark.archiving import offsets_in
from tests.logs import LOG
from tests.processes import ManageCommands, wait_until

KILLS = int(os.environ.get("ARCHIVE_KILLS", "2"))
OPTIONS = {**QUICK, "RETENTION": 0, "LEASE_DURATION": 4, "HEARTBEAT_INTERVAL": 1}
TIMEOUT = 240
JAVA = "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600 + 120 * KILLS)]


def publish_some(count: int) -> set[int]:
    before = set(Message.objects.values_list("offset", flat=True))
    publish_many("t", [NewMessage({"n": n}, key=str(n)) for n in range(count)])
    return set(Message.objects.values_list("offset", flat=True)) - before


@pytest.mark.long
def test_killed_anywhere_and_run_again_the_archive_holds_each_message_once(
    manage: ManageCommands, tmp_path: Path, settings
) -> None:
    settings.SQLQUEUE = OPTIONS
    folder = tmp_path / "archive"
    chance = random.Random()
    published = publish_some(60)

    def start():
        words = ["--segment-rows=20", "--no-receipts", "--wait=120", "--master=local[1]"]
        words += ["--conf=spark.driver.memory=512m", f"--conf=spark.driver.extraJavaOptions={JAVA}"]
        return manage("queuearchive", str(folder), *words, env={"SQLQUEUE": json.dumps(OPTIONS)})

    for kill in range(KILLS):
        done = ArchiveSegment.objects.count()
        command = start()

        def under_way(done: int = done, command=command) -> bool:
            advanced = ArchiveSegment.objects.count() > done
            assert advanced or command.returncode is None, command.output
            return advanced

        if kill % 2 == 0:
            wait_until(under_way, TIMEOUT, lambda command=command: command.output)
            time.sleep(chance.uniform(0, 2))  # anywhere in a segment, which takes about so long
        else:
            time.sleep(chance.uniform(0, 15))
        command.kill_all()
        held = offsets_in(folder)
        assert set(held.values()) == {1}
        assert set(held) <= published
        collect(LOG, known_horizon())
        assert published - set(Message.objects.values_list("offset", flat=True)) <= set(held)
        published |= publish_some(20)
    command = start()
    assert command.wait(TIMEOUT) == 0, command.output
    assert offsets_in(folder) == dict.fromkeys(published, 1)
    assert not list((folder / "_partial").iterdir())
    collect(LOG, known_horizon())
    assert not Message.objects.exists()


def known_horizon() -> Horizon:
    horizon = Horizon(LOG)
    horizon.wait()
    return horizon
