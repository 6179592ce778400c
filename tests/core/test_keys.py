"""Keys, ids and names: nothing is cut, and everybody computes the same partition."""

import os
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.core import keys
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

pytestmark = pytest.mark.once

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


@given(TEXT, st.integers(1, 10_000))
def test_a_partition_is_the_crc32_of_the_keys_bytes(key: str, partitions: int) -> None:
    assert keys.partition_of(key, partitions) == zlib.crc32(key.encode("utf-8")) % partitions


def test_known_partitions() -> None:
    # As MySQL answers SELECT CRC32('N14228') % 32, CRC32('é✈') % 32.
    assert [keys.partition_of(key, 32) for key in ("N14228", "é✈", "")] == [
        zlib.crc32(b"N14228") % 32,
        zlib.crc32("é✈".encode()) % 32,
        0,
    ]
    assert zlib.crc32(b"123456789") == 0xCBF43926  # the check value of that CRC


def test_keys_spread_over_all_partitions() -> None:
    assert {keys.partition_of(f"key {n}", 32) for n in range(1_000)} == set(range(32))


def test_new_ids_are_version_7_grow_and_differ() -> None:
    made = [keys.new_id() for _ in range(2_000)]
    assert len(set(made)) == len(made)
    assert all(each[14] == "7" and each[19] in "89ab" for each in made)
    assert [each[:13] for each in made] == sorted(each[:13] for each in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork()")
def test_a_process_and_its_fork_give_out_different_ids() -> None:
    """Also if the fork is not Python's own, which would tell of it: so is that of libc here."""
    script = (
        "import ctypes, os, sys; from sqlqueue.core.keys import new_id; new_id(); fork = ctypes.PyDLL(None).fork;"
        " child = fork(); [os.write(1, (new_id()[15:] + '\\n').encode()) for _ in range(100)];"
        " child or os._exit(0); os.waitpid(child, 0)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    made = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    assert len(made.split()) == len(set(made.split())) == 200


@given(TEXT.filter(lambda text: len(text) <= keys.KEY_LENGTH))
def test_what_fits_is_kept_whole(text: str) -> None:
    assert keys.checked_text(text, "key", keys.KEY_LENGTH) == text


@pytest.mark.parametrize("value", ["x" * 256, "a\0b", "\ud800", 5, None, b"bytes"])
def test_what_cannot_be_kept_is_refused(value: object) -> None:
    with pytest.raises(InvalidMessage, match="key"):
        keys.checked_text(value, "key", keys.KEY_LENGTH)


@pytest.mark.parametrize("name", ["t", "T.1:a/b-c_d", "9", "x" * 100, "x" * 100 + "_dlq"])
def test_names_of_topics(name: str) -> None:
    assert keys.checked_topic(name) == name


@pytest.mark.parametrize("name", ["", "_t", "a b", "é", "x" * 101, "x" * 101 + "_dlq", 5, None, "a\n"])
def test_refused_names_of_topics(name: object) -> None:
    with pytest.raises(ConfigurationError):
        keys.checked_topic(name)


def test_a_near_word_is_suggested_and_else_all_are_named() -> None:
    assert "'retention'" in keys.did_you_mean("retentoin", ["retention", "history"])
    assert keys.did_you_mean("zzz", ["b", "a"]) == " Known are: a, b."


def test_a_hint_lists_a_bounded_number_of_words() -> None:
    words = [f"topic-{number:04}" for number in range(keys.MOST_NAMED + 5)]
    assert keys.did_you_mean("zzz", words).endswith(f", {words[keys.MOST_NAMED - 1]} and 5 more.")
    assert keys.did_you_mean("zzz", []) == ""
