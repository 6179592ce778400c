"""A topic's databases: read, refused with what to do; and the hash that spreads keys."""

import re
from collections import Counter
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, as_stored, database_of, partition_of
from sqlqueue.core.settings import ALIAS_LENGTH, MOST_DATABASES
from sqlqueue.database.log import Log
from sqlqueue.models.topic import DATABASES_COLUMN

HASHED = "ccbbaaabaabaabcbcbcbbacb"


@pytest.mark.once
@pytest.mark.parametrize(
    ("databases", "said"),
    [
        (["nowhere"], r"\('nowhere'\) names the alias 'nowhere', which DATABASES does not have"),
        ([], "must be a list with aliases of DATABASES"),
        ("default", "must be a list with aliases of DATABASES"),
        ([5], "must be a list with aliases of DATABASES"),
        (["x" * 31], "an alias has up to 30 characters, and no commas"),
        (["a,b"], "an alias has up to 30 characters, and no commas"),
        (["default", "default"], "names a database twice"),
        ([f"d{n}" for n in range(64)], "TOPICS names 64 databases beside DATABASE; 64 are the most in all"),
    ],
)
def test_what_is_wrong_is_said(databases: Any, said: str) -> None:
    with override_settings(SQLQUEUE={"TOPICS": {"t": {"databases": databases}}}):
        assert any(re.search(said, problem) for problem in settings.problems()), settings.problems()


@pytest.mark.once
@pytest.mark.parametrize("topic", ["periodic", f"t{DEAD_LETTER_SUFFIX}"])
def test_what_is_on_database_alone_stays_there(topic: str) -> None:
    with override_settings(SQLQUEUE={"TOPICS": {topic: {"databases": ["other"]}}}):
        assert any(f"TOPICS[{topic!r}]['databases'] cannot be" in problem for problem in settings.problems())


@pytest.mark.once
def test_without_any_there_is_one() -> None:
    with override_settings(SQLQUEUE={}):
        assert (settings.aliases, settings.several, Log.of("default").label) == (("default",), False, "")
        assert settings.databases_of("t") == ("default",)
    with override_settings(SQLQUEUE={"TOPICS": {"t": {"databases": ["default"]}}}):
        assert (settings.aliases, settings.several, Log.of("default").label) == (("default",), False, "")


@pytest.mark.once
def test_as_many_databases_as_there_may_be_fit_a_topics_row() -> None:
    names = [f"{number:0{ALIAS_LENGTH}}" for number in range(MOST_DATABASES)]
    assert len(as_stored(names)) <= DATABASES_COLUMN


@pytest.mark.once
def test_the_hash_never_changes() -> None:
    names = ["b", "a", "c"]
    assert [database_of(key, names) for key in ("", "1", "N14228", "größe", "飛行機")] == [
        database_of(key, sorted(names)) for key in ("", "1", "N14228", "größe", "飛行機")
    ]
    assert "".join(database_of(f"key-{number}", names) for number in range(24)) == HASHED


@pytest.mark.once
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_keys_are_spread_evenly_over_the_partitions_of_each_database(count: int) -> None:
    names = [f"s{number}" for number in range(count)]
    keys = [f"customer-{number}" for number in range(count * 3200)]
    found = Counter((database_of(key, names), partition_of(key, 32)) for key in keys)
    assert len(found) == count * 32
    assert max(found.values()) < 2 * 100


@pytest.mark.database("mariadb", "mysql")
@pytest.mark.django_db
def test_it_is_what_the_documents_say_for_sql() -> None:
    with connection.cursor() as cursor:
        for key in ("", "1", "N14228", "größe", "飛行機"):
            cursor.execute("SELECT CAST(CONV(LEFT(SHA2(%s, 256), 15), 16, 10) AS UNSIGNED) %% 3", [key])
            assert "abc"[int(cursor.fetchone()[0])] == database_of(key, "cab")
