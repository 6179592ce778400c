"""SHARDS and a topic's shards: read together, refused with what to do; and the hash that spreads keys."""

from collections import Counter
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from sqlqueue.conf import settings
from sqlqueue.core.keys import partition_of
from sqlqueue.core.setting.shards import MOST_SHARDS, SHARD_LENGTH
from sqlqueue.core.shards import as_stored, from_stored, shard_of
from sqlqueue.models.topic import SHARDS_COLUMN

HASHED = "ccbbaaabaabaabcbcbcbbacb"
ONE = {"a": {"alias": "default"}}


@pytest.mark.once
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"SHARDS": {"a": {"alias": "nowhere"}}}, "no shard of SHARDS has that alias"),
        (
            {"SHARDS": ONE | {"b": {"alias": "nowhere"}}},
            r"SHARDS\['b'\] names the alias 'nowhere', which DATABASES does",
        ),
        ({"SHARDS": ONE | {"b": {"alias": "default"}}}, "'a' and 'b' both have the alias 'default'"),
        ({"SHARDS": {"a": {"alias": "default", "host": "x"}}}, "has no option 'host'"),
        ({"SHARDS": {"x" * 31: {"alias": "default"}}}, "use up to 30 lower-case letters"),
        ({"SHARDS": {"a,b": {"alias": "default"}}}, "'a,b' is not a name"),
        ({"SHARDS": ONE | {f"s{n}": {"alias": f"d{n}"} for n in range(64)}}, "has 65 shards; 64 are the most"),
        ({"SHARDS": ONE, "TOPICS": {"t": {"shards": ["b"]}}}, "names 'b', which SHARDS does not have. Known are: a"),
        ({"SHARDS": ONE, "TOPICS": {"t": {"shards": ["a", "a"]}}}, "names a shard twice"),
        ({"TOPICS": {"t": {"shards": ["a"]}}}, "There are no SHARDS"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], said: str) -> None:
    import re

    with override_settings(SQLQUEUE=given):
        assert any(re.search(said, problem) for problem in settings.problems()), settings.problems()


@pytest.mark.once
def test_without_shards_there_is_one() -> None:
    with override_settings(SQLQUEUE={}):
        assert (settings.aliases, settings.shards, settings.sharded) == (("default",), {}, False)
        assert settings.shard_name("default") == ""
    with override_settings(SQLQUEUE={"SHARDS": ONE}):
        assert (settings.aliases, settings.sharded, settings.shard_name("default")) == (("default",), False, "a")


@pytest.mark.once
def test_what_is_worked_on_is_of_this_thread() -> None:
    with override_settings(SQLQUEUE={}):
        with settings.at("other"):
            assert (settings.DATABASE, settings.home) == ("other", "default")
        assert settings.DATABASE == "default"


@pytest.mark.once
def test_as_many_shards_as_there_may_be_fit_a_topics_row() -> None:
    names = [f"{number:0{SHARD_LENGTH}}" for number in range(MOST_SHARDS)]
    assert len(as_stored(names)) <= SHARDS_COLUMN
    assert from_stored(as_stored(names)) == tuple(names)


@pytest.mark.once
def test_the_hash_never_changes() -> None:
    names = ["b", "a", "c"]
    assert [shard_of(key, names) for key in ("", "1", "N14228", "größe", "飛行機")] == [
        shard_of(key, sorted(names)) for key in ("", "1", "N14228", "größe", "飛行機")
    ]
    assert "".join(shard_of(f"key-{number}", names) for number in range(24)) == HASHED


@pytest.mark.once
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_keys_are_spread_evenly_over_the_partitions_of_each_shard(count: int) -> None:
    names = [f"s{number}" for number in range(count)]
    keys = [f"customer-{number}" for number in range(count * 3200)]
    found = Counter((shard_of(key, names), partition_of(key, 32)) for key in keys)
    assert len(found) == count * 32
    assert max(found.values()) < 2 * 100


@pytest.mark.database("mariadb", "mysql")
@pytest.mark.django_db
def test_it_is_what_the_documents_say_for_sql() -> None:
    with connection.cursor() as cursor:
        for key in ("", "1", "N14228", "größe", "飛行機"):
            cursor.execute("SELECT CAST(CONV(LEFT(SHA2(%s, 256), 15), 16, 10) AS UNSIGNED) %% 3", [key])
            assert "abc"[int(cursor.fetchone()[0])] == shard_of(key, "cab")
