"""The words of the dialects mean the same to every vendor."""

from datetime import datetime

import pytest
from django.db import connection

from sqlqueue.database import insert_sql
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.database.dialects.base import LONG, REMEMBERED, _long
from sqlqueue.database.generations import FIRST
from sqlqueue.database.insert_sql import LogRow, insertion
from tests.logs import LOG

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("microseconds", [0, 1, -1, 3, -3, 1_500_000, -1_500_000, 10**15])
@pytest.mark.parametrize("word", ["earlier", "later"])
def test_a_time_can_be_moved_by_any_span(word: str, microseconds: int) -> None:
    """An attempt that ended while its settle was on its way ended a moment after "now": its receipt has a time, too."""
    sign = 1 if word == "later" else -1
    now, moved = LOG.execute(f"SELECT {{now}}, {{{word}}}", (microseconds,)).fetchone()
    assert moved is not None
    if connection.vendor == "sqlite":
        now, moved = datetime.fromisoformat(now), datetime.fromisoformat(moved)
    assert (moved - now).total_seconds() == pytest.approx(sign * microseconds / 1e6, abs=0.01)


RESERVED = {
    "mysql": "SELECT LOWER(word) FROM information_schema.keywords WHERE reserved = 1",
    "mariadb": "SELECT LOWER(word) FROM information_schema.keywords",  # it does not say which
    "postgresql": "SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')",
}


@pytest.mark.database("mysql", "mariadb", "postgresql")
def test_no_word_that_a_server_reserves_is_refused_as_a_name(database_name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(RESERVED[database_name])
        words = [word for (word,) in cursor.fetchall() if word.isidentifier()]
    assert {"select", "limit"} <= set(words)
    for word in words:
        text = f"SELECT x.{word} FROM (SELECT 1 AS {word}) AS x ORDER BY {word}"
        assert list(LOG.execute(text).fetchall()) == [(1,)], word


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("SELECT lag, MAX(t.lag) FROM a AS t", "SELECT 'lag', MAX('t'.'lag') FROM 'a' AS 't'"),
        ("INSERT INTO a (lag) VALUES (%s, %s)", "INSERT INTO 'a' ('lag') VALUES (%s, %s)"),
        ("SET lag = excluded.lag + 1e6", "SET 'lag' = 'excluded'.'lag' + 1e6"),
    ],
)
@pytest.mark.parametrize("vendor", DIALECTS)
def test_every_name_is_quoted_once(vendor: str, text: str, quoted: str) -> None:
    words = DIALECTS[vendor]
    assert words.sql(text) == quoted.replace("'", words.quote)
    assert words.sql(words.sql(text)) == words.sql(text)


def test_texts_and_names_that_are_quoted_stay_as_they_are() -> None:
    words = LOG.dialect
    text = """SELECT 'a lag', '%%s', "lag", '{ "lag": 1}' """
    assert words.sql(text) == text.replace('"lag",', f"{words.quote}lag{words.quote},")


def test_of_long_statements_only_some_are_remembered() -> None:
    """A publisher whose batches differ in size would otherwise keep a text for each."""
    for vendor, words in DIALECTS.items():
        for rows in range(1, 3 * REMEMBERED):
            marks = ", ".join(["(%s, {now})"] * (rows + LONG // 10))
            composed = words.sql(f"INSERT INTO t (a, b) VALUES {marks}")
            assert composed.count(words.placeholders["now"]) == rows + LONG // 10, vendor
    assert _long.cache_info().currsize == REMEMBERED


@pytest.mark.parametrize("there", [(), (2,), (1, 2, 3)])
def test_of_rows_that_may_be_there_those_that_are_missing_are_inserted(there: tuple[int, ...]) -> None:
    columns = ("name", "partitions", "priorities", "history")

    def insert(*numbers: int) -> set[str]:
        rows = {f"t{number}": (f"t{number}", number, 1, "all") for number in numbers}
        into = f"sqlqueue_topic ({', '.join(columns)})"
        return LOG.insert_missing(into, "(%s, %s, %s, %s)", rows, "name", "name")

    assert insert(*there) == {f"t{number}" for number in there} if there else True
    inserted = insert(1, 2, 3)
    missing = {"t1", "t2", "t3"} - {f"t{number}" for number in there}
    assert inserted == (missing if not LOG.dialect.slotted or not there else set())
    names = LOG.execute("SELECT name FROM sqlqueue_topic WHERE name LIKE 't_'").fetchall()
    assert {name for (name,) in names} == inserted | {f"t{number}" for number in there}


def test_of_inserts_only_some_are_remembered() -> None:
    row = LogRow("t", 0, 0, "k", "id", "{}", None, "")
    for count in range(1, insert_sql.REMEMBERED + 20):
        text, values = insertion("mysql", [row] * count, "", FIRST, 0)
        assert text.count("(%s, %s, %s, %s, %s)") == count - 1
        assert text.count("%s") == len(values)
    assert insert_sql._text.cache_info().currsize == insert_sql.REMEMBERED
