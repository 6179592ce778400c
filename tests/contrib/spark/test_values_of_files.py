"""What files hold is published as it is there, or refused with the file and line; all ways in write the same JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sqlqueue.contrib.spark.backfill import as_messages, in_order, publish
from sqlqueue.contrib.spark.files import LINE, TEXTS, UNFIT, read_files
from sqlqueue.contrib.spark.writer import to_json
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import Message
from tests.consuming import QUICK

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def quick(settings) -> None:
    settings.SQLQUEUE = dict(QUICK)


def backfill(*words: object) -> None:
    call_command("queuebackfill", "t", *map(str, words), verbosity=0)


def payloads(topic: str = "t") -> list[Any]:
    return list(Message.objects.filter(topic=topic).order_by("offset").values_list("payload", flat=True))


EVERYTHING = """
    SELECT named_struct('at', timestamp'2024-01-01 00:00:00.123456') event,
        CAST('12345678901234567890.12' AS decimal(38,2)) amount,
        parse_json('{"price": 1.10, "of": ["x", 12345678901234567890]}') free, array(parse_json('true')) many,
        CAST(0.1 AS float) small, date'2024-02-29' day, timestamp_ntz'2024-01-01 00:00:00.000001' plain,
        X'00ff' bytes, interval '1' day pause, map('a', CAST(1 AS bigint)) `of.all`
    UNION ALL
    SELECT named_struct('at', timestamp'2024-01-01 00:00:00.123789'), CAST('12345678901234567890.12' AS decimal(38,2)),
        parse_json('{"price": 1.10, "of": ["x", 12345678901234567890]}'), array(parse_json('true')),
        CAST(0.1 AS float), date'2024-02-29', timestamp_ntz'2024-01-01 00:00:00.000001',
        X'00ff', interval '1' day, map('a', CAST(1 AS bigint))
"""


def test_a_backfill_and_a_write_make_the_same_of_every_type(spark: SparkSession, tmp_path: Path, capsys) -> None:
    rows = spark.sql(EVERYTHING)
    rows.coalesce(1).write.parquet(str(tmp_path / "rows"))
    backfill(tmp_path / "rows", "--format=parquet", "--dry-run")
    assert "2 rows would be 2 messages" in (out := capsys.readouterr().out)
    assert "12345678901234567890.12" in out
    backfill(tmp_path / "rows", "--format=parquet")
    found = sorted(payloads(), key=lambda row: row["event"]["at"])
    assert [row.pop("event") for row in found] == [
        {"at": "2024-01-01T00:00:00.123456Z"},
        {"at": "2024-01-01T00:00:00.123789Z"},
    ]
    assert found[0] == found[1]
    assert found[0] == {
        "amount": 12345678901234567890.12,
        "free": {"price": 1.1, "of": ["x", 12345678901234567890]},
        "many": [True],
        "small": 0.1,
        "day": "2024-02-29",
        "plain": "2024-01-01T00:00:00.000001",
        "bytes": "AP8=",
        "pause": "INTERVAL '1' DAY",
        "of.all": {"a": 1},
    }
    payload = to_json(F.struct(*(f"`{name}`" for name in rows.columns)))
    written = rows.select(F.expr("uuid()").alias("id"), payload.alias("payload"))
    written.write.format("sqlqueue").option("topic", "written").mode("append").save()
    assert sorted(map(json.dumps, payloads("written"))) == sorted(map(json.dumps, payloads()))
    backfill(tmp_path / "rows", "--format=parquet")
    assert len(payloads()) == 2


def test_csv_files_with_other_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("payer,payee\nann,bob\n")
    (tmp_path / "b.csv").write_text("payee,payer\nbob,ann\n")
    with pytest.raises(
        CommandError,
        match=r"b\.csv, line 1: .* not those of the first file .*Header: payee, payer Schema: payer, payee",
    ):
        backfill(tmp_path / "*.csv")
    (tmp_path / "b.csv").write_text("payer\nann\n")
    with pytest.raises(
        CommandError, match=r"b\.csv, line 1: .* not those of the first file .*Header length: 1, schema size: 2"
    ):
        backfill(tmp_path / "*.csv")
    assert not payloads()


def test_what_does_not_fit_is_refused_with_its_file_and_line(spark: SparkSession, tmp_path: Path) -> None:
    for name, text, options, said in (
        ("a.csv", "n,t\n1,x\n2,y,z\n", ("--payload=n",), r"a\.csv, line 3: it has not as many columns .*: 2,y,z"),
        ("a.csv", "n\n0.5\nNaN\n", (), r"a\.csv: column 'n' has what JSON has no number for: NaN"),
        ("a.csv", "n,at\n1,2024-02-29\n2,2023-02-29\n", ("--time=at",), r"a\.csv: column 'at' has no time: 2023-02-29"),
        ("a.csv", "_sqlqueue_row\n1\n", (), "a column '_sqlqueue_row'"),
        (
            "a.json",
            '{"n": 1}\n{"t": "' + "x" * 300,
            (),
            r'a\.json, line 2: it is no JSON object: \{"t": "x{193}\. Nothing was published',
        ),
        ("a.json", '{"at": "soon"}', ("--time=at",), r"a\.json, line 1: column 'at' has no time: soon"),
        ("a.json", '{"n": 1}', ("--payload=n",), "JSON lines are published as they are"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(CommandError, match=said):
            backfill(tmp_path / name, *options)
    assert not payloads()


def unfit(spark: SparkSession, file: Path, column: str) -> dict[str, str | None]:
    """Return why rows of a file do not fit, by a column's text."""
    rows = read_files(spark, [str(file)], file.suffix[1:])
    return {row["text"]: row["why"] for row in rows.selectExpr(f"{column} AS text", f"{UNFIT} AS why").collect()}


def test_numbers_that_a_float_does_not_keep_and_short_rows_do_not_fit(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    long = ["12345678901234567890.12", "90071992547409.93", "12345678901234.567"]
    (tmp_path / "a.csv").write_text("\n".join(["n,t", *(f"{text},x" for text in ["90071992547409.9", *long]), "2"]))
    found = unfit(spark_session, tmp_path / "a.csv", f"{TEXTS}.n")
    many = "column 'n' has more digits than a float keeps (--option inferSchema=false keeps all): "
    assert found == {
        "90071992547409.9": None,
        **{text: many + text for text in long},
        "2": "it has not as many columns as the header",
    }


def test_lines_that_are_no_json_objects_do_not_fit(spark_session: SparkSession, tmp_path: Path) -> None:
    broken = ['{"n": 2', "[2]", '{"l": [0.5, NaN]}', "{'a': {'n': 0.5}}"]
    (tmp_path / "a.json").write_text("\n".join(['{"n": 1}', *broken]))
    found = unfit(spark_session, tmp_path / "a.json", LINE)
    assert found == {'{"n": 1}': None, **dict.fromkeys(broken, "it is no JSON object")}


def test_a_row_that_does_not_fit_is_not_published_by_the_functions_either(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t\n1,x\n2\n")
    messages = as_messages(read_files(spark, [str(tmp_path / "a.csv")], "csv"))
    with pytest.raises(Exception, match=r"a\.csv: it has not as many columns as the header"):
        publish(in_order(messages, writers=1), "t")
    assert not payloads()


def test_numbers_that_floats_keep_are_published_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["0.123456789012345", "90071992547409.9", "8.40999999999999E21", "-1.50", "0.0", "1e-7"]
    texts += ["12.50000000000000000000", "900719925474099000"]
    (tmp_path / "a.csv").write_text("\n".join(["n", *texts]) + "\n")
    backfill(tmp_path / "a.csv")
    assert sorted(row["n"] for row in payloads()) == sorted(map(float, texts))


def test_a_line_of_json_is_the_payload(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        '{"id": 12345678901234567890.12, "k": {"of": "a|b"}, "n": 10, "l": [1.50]}',
        '{"id": 12345678901234567890.13, "k": {"of": "a|b"}, "n": 9}',
    ]
    (tmp_path / "a.json").write_text("\n\n".join(lines) + "\n")
    backfill(tmp_path / "a.json", "--key=k.of", "--id=id,n", "--order=n", "--writers=1")
    found = Message.objects.filter(topic="t").order_by("offset")
    assert [row.message_id for row in found] == ["12345678901234567890.13|9", "12345678901234567890.12|10"]
    assert {row.partition_key for row in found} == {"a|b"}
    assert payloads() == [json.loads(line) for line in reversed(lines)]


def test_columns_that_are_not_published_may_hold_what_json_cannot_say(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT 1 AS n, double('NaN') AS v").write.parquet(str(tmp_path / "rows"))
    backfill(tmp_path / "rows", "--format=parquet", "--payload=n", "--id=n")
    assert payloads() == [{"n": 1}]


def test_numbers_of_long_files_keep_their_digits_as_texts(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n0.5\n12345678901234567890.12\n")
    backfill(tmp_path / "a.csv", "--option=inferSchema=false")
    assert sorted(row["n"] for row in payloads()) == ["0.5", "12345678901234567890.12"]


def test_columns_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a.b,_row,_file,c`d\n7,2,x,y\n")
    backfill(tmp_path / "*.csv", "--key=a.b", "--id=a.b,c`d", "--order=_row")
    (message,) = Message.objects.filter(topic="t")
    assert (message.partition_key, message.message_id) == ("7", "7|y")
    assert message.payload == {"a.b": 7, "_row": 2, "_file": "x", "c`d": "y"}


def test_wildcards_that_match_nothing_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"PATH_NOT_FOUND.*nothing-\*\.csv"):
        backfill(tmp_path / "nothing-*.csv")


def test_a_session_in_another_time_zone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with pytest.raises(ConfigurationError, match="this Spark session's time zone is Europe/Berlin"):
            read_files(spark, [str(tmp_path / "a.csv")], "csv")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
