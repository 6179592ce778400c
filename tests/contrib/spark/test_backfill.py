"""Files become messages, each row once and each key's in order; and the archive becomes messages again."""

import json
from collections import defaultdict
from datetime import timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from django.core.management import CommandError, call_command
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sqlqueue import NewMessage, publish_many
from sqlqueue.contrib.spark.archive import read_archive
from sqlqueue.contrib.spark.rehydrate import in_range
from sqlqueue.log.groups import register
from sqlqueue.models import Message
from tests.consuming import QUICK, Consuming
from tests.contrib.spark.archiving import archive
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

ROWS = 600


@pytest.fixture(autouse=True)
def quick(settings) -> None:
    settings.SQLQUEUE = dict(QUICK)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two CSV files, in the order of their names, each with rows of ten keys."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number, rows in enumerate((range(ROWS // 3), range(ROWS // 3, ROWS))):
        lines = [f'{n},k{n % 10},"ünï, {n}",{"NA" if n % 5 else n / 4},2013-01-31 18:{n % 60:02}:00' for n in rows]
        (folder / f"part{number}.csv").write_text("\n".join(["n,key,text,amount,at", *lines]) + "\n")
    return folder


def backfill(*words: object) -> None:
    call_command("queuebackfill", "t", *map(str, words))


def log() -> list[Message]:
    return list(Message.objects.filter(topic="t").order_by("offset"))


def test_rows_become_messages_in_order_and_once(spark: SparkSession, files: Path, capsys) -> None:
    words = (files, "--format=csv", "--key=key", "--id=key,n", "--payload=n,text,amount", "--time=at")
    words += ("--option=nullValue=NA", "--writers=3")
    backfill(*words, "--dry-run")
    assert f"{ROWS:,} rows would be {ROWS:,} messages with 10 keys" in capsys.readouterr().out
    assert not log()
    backfill(*words)
    assert f"{ROWS:,} rows, {ROWS:,} new messages" in capsys.readouterr().out
    messages = log()
    order = defaultdict(list)
    for message in messages:
        order[message.partition_key].append(message.payload["n"])
    assert order == {f"k{key}": list(range(key, ROWS, 10)) for key in range(10)}
    seven = next(message for message in messages if message.payload["n"] == 7)
    assert (seven.message_id, seven.payload) == ("k7|7", {"n": 7, "text": "ünï, 7", "amount": None})
    assert seven.headers == {"time": "2013-01-31T18:07:00.000000Z"}
    assert {type(message.payload["amount"]) for message in messages} == {float, type(None)}
    backfill(*words)
    assert "0 new messages" in capsys.readouterr().out
    assert len(log()) == ROWS


def test_what_a_killed_run_has_published_is_not_published_again(spark: SparkSession, files: Path) -> None:
    publish_many("t", [NewMessage({"n": n}, key=f"k{n % 10}", id=f"k{n % 10}|{n}") for n in range(100)])
    backfill(files, "--format=csv", "--key=key", "--id=key,n", "--payload=n")
    assert len(log()) == ROWS
    order = defaultdict(list)
    for message in log():
        order[message.partition_key].append(message.payload["n"])
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_parquet_and_json_keep_their_types(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"id": f"m{n}", "big": 2**53 + n, "none": None, "list": [1, n], "text": "🛬"} for n in range(3)]
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("big", pa.int64()),
            ("none", pa.string()),
            ("list", pa.list_(pa.int64())),
            ("text", pa.string()),
        ]
    )
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "rows.parquet")
    backfill(tmp_path / "rows.parquet", "--id=id")
    assert sorted((message.payload for message in log()), key=lambda payload: payload["id"]) == rows
    (tmp_path / "rows.json").write_text("".join(json.dumps({**row, "id": f"j{row['id']}"}) + "\n" for row in rows))
    backfill(tmp_path / "rows.json")
    backfill(tmp_path / "rows.json")  # without an id, a row is known by what it says
    assert sorted(message.payload["id"] for message in log()[3:]) == ["jm0", "jm1", "jm2"]


def published(topic: str) -> int:
    return Message.objects.filter(topic=topic).count()


@pytest.mark.parametrize("words", [["--id=n", "--key=n"], []])
def test_a_file_that_grows_is_published_once_whatever_types_the_new_rows_have(
    spark: SparkSession, tmp_path: Path, words: list[str]
) -> None:
    rows = [f"{n:03},name {n},{n},2013-01-{n % 28 + 1:02}" for n in range(50)]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["n,name,amount,day", *rows]) + "\n")
    backfill(file, *words, "--writers=1")
    assert {type(message.payload["amount"]) for message in log()} == {int}
    assert {type(message.payload["n"]) for message in log()} == {int}
    file.write_text(file.read_text() + "x99,name 50,0.5,soon\n")
    backfill(file, *words, "--writers=1")
    assert published("t") == 51
    if "--id=n" in words:
        assert set(Message.objects.values_list("message_id", "partition_key")) >= {("007", "007"), ("x99", "x99")}


def test_lines_of_json_that_grow_are_published_once(spark: SparkSession, tmp_path: Path) -> None:
    words = ["--id=n,more", "--key=n"]
    rows = [{"n": n, "more": {"deep": n, "list": [n, 2**53 + n]}, "at": "2013-01-31", "yes": True} for n in range(20)]
    rows[3]["n"] = None
    file = tmp_path / "rows.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    backfill(file, *words)
    by_number = {message.payload["n"]: message for message in log()}
    assert [by_number[row["n"]].payload for row in rows] == rows
    rows[:0] = [{"n": 0.5, "more": {"deep": "x", "list": []}, "at": "now", "yes": "no", "new": 1}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    backfill(file, *words)
    assert published("t") == 21


def test_different_values_never_make_one_id(spark: SparkSession, tmp_path: Path) -> None:
    rows = ["x-1,2", "x,1-2", "x|1,2", "x,1|2", "x\\,|2", "x\\|,2", ",2", "\\N,2"]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["a,b", *rows]) + "\n")
    backfill(file, "--id=a,b", '--option=escape="', "--writers=1")
    assert published("t") == len(rows)


def test_what_cannot_be_is_refused(spark: SparkSession, files: Path) -> None:
    with pytest.raises(CommandError, match="--format"):
        backfill(files)
    with pytest.raises(CommandError, match="nothing"):
        backfill(files, "--format=csv", "--key=nothing")
    with pytest.raises(CommandError, match="writers"):
        backfill(files, "--format=csv", "--writers=0")


class TestRehydrate:
    @pytest.fixture
    def folder(self, spark: SparkSession, tmp_path: Path) -> Path:
        """An archive of twenty messages which are no longer in the log."""
        publish_many("t", [NewMessage({"n": n}, key=f"k{n % 3}", headers={"n": n}) for n in range(20)])
        archive(spark, tmp_path / "archive", segment_rows=8)
        self.offsets = [message.offset for message in log()]
        Message.objects.all().delete()
        return tmp_path / "archive"

    def test_a_range_comes_again_in_order_and_once(self, folder: Path, capsys) -> None:
        words = ("queuerehydrate", folder, "t", f"--from={self.offsets[5]}", f"--to={self.offsets[14]}")
        call_command(*words, "--dry-run")
        assert "10 messages would be published" in capsys.readouterr().out
        call_command(*words)
        call_command(*words)
        messages = log()
        assert sorted(message.payload["n"] for message in messages) == list(range(5, 15))
        for key in ("k0", "k1", "k2"):
            numbers = [message.payload["n"] for message in messages if message.partition_key == key]
            assert numbers == sorted(numbers)
        assert all(message.headers == {"n": message.payload["n"]} for message in messages)
        call_command(*words, "--label=again")
        assert len(log()) == 20
        register(LOG, "again", "t")
        call_command(*words, "--group=again")  # neither the label's rows nor those for all
        assert len(log()) == 30

    def test_one_group_alone_gets_it(self, folder: Path, consuming: Consuming) -> None:
        heard = []
        consuming.consumer("t", lambda delivery: heard.append(delivery.payload["n"]), group="wanted")
        consuming.consumer("t", lambda delivery: heard.append("another"), group="another")
        with pytest.raises(CommandError, match="does not read topic"):
            call_command("queuerehydrate", folder, "t", "--all", "--group=wanted")
        register(LOG, "wanted", "t")
        call_command("queuerehydrate", folder, "t", "--all", "--key=k1", "--group=wanted")
        consuming.drain()
        assert sorted(heard) == list(range(1, 20, 3))

    def test_times_name_a_range_too(self, spark: SparkSession, folder: Path) -> None:
        archived = read_archive(spark, str(folder))
        (fifth,) = archived.where(F.col("offset") == self.offsets[5]).collect()
        moment = f"{fifth['created_at'].astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}"
        assert in_range(archived, "t", until=moment, key="k9").count() == 0
        early = in_range(archived, "t", until=moment).count()
        assert early + in_range(archived, "t", since=moment).count() == 20

    def test_a_range_has_to_be_named(self, folder: Path) -> None:
        with pytest.raises(CommandError, match="--all"):
            call_command("queuerehydrate", folder, "t")
