"""The guide's table of bounds has those that the code has."""

import re
from dataclasses import fields
from functools import partial

import pytest

from sqlqueue.consumers.declare.registry import DURATIONS as MANNERS
from sqlqueue.consumers.declare.registry import MOST_ATTEMPTS, MOST_OF_A_BATCH
from sqlqueue.contrib.people.models import USER_LENGTH
from sqlqueue.contrib.people.work import COMMENT_LENGTH
from sqlqueue.core.bounds import CENTURY, DAY, LEAST_RATE, MOST_RATE, duration
from sqlqueue.core.flow import HOURS_LENGTH, MOST_AT_ONCE, MOST_OF_A_RATE
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, GROUP_LENGTH, ID_LENGTH, KEY_LENGTH, TOPIC_LENGTH
from sqlqueue.core.settings import (
    ALIAS_LENGTH,
    MOST_DATABASES,
    MOST_PARTITIONS,
    MOST_PAYLOAD,
    MOST_PREFETCH,
    MOST_PRIORITIES,
    MOST_THREADS,
    TOKEN,
    QueueOptions,
)
from sqlqueue.exceptions import LONGEST_DELAY, SHORTEST_LIFE
from sqlqueue.payloads.versions import CONTENT_TYPE_LENGTH
from tests.documents import ROOT

pytestmark = pytest.mark.once

CHECKS = {option.name: option.metadata["check"] for option in fields(QueueOptions)}
DURATIONS = {
    name: (check.keywords["least"], check.keywords["most"])
    for name, check in CHECKS.items()
    if isinstance(check, partial) and check.func is duration
}

LENGTHS = {DAY: "1 day", 30 * DAY: "30 days", LONGEST_DELAY: "10 years of 365 days", CENTURY: "100 years of 365 days"}


def rows() -> dict[str, tuple[str, str]]:
    """Return what the table says, by each name."""
    table = (ROOT / "docs/guide.md").read_text().split('<a id="bounds"></a>')[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return {name: (least, most) for what, least, most in cells for name in re.findall(r"`(\w+)`", what) or [what]}


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        *DURATIONS.items(),
        *MANNERS.items(),
        ("jitter", (0.0, 1.0)),
        ("expires", (SHORTEST_LIFE, LONGEST_DELAY)),
        ("unique_for", (SHORTEST_LIFE, LONGEST_DELAY)),
    ],
)
def test_a_length_of_time(name: str, bounds: tuple[float, float]) -> None:
    least, most = rows()[name]
    assert float(least.removesuffix(" s")) == bounds[0]
    assert most == ("1" if name == "jitter" else LENGTHS[bounds[1]])


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("PARTITIONS", MOST_PARTITIONS),
        ("partitions", MOST_PARTITIONS),
        ("priorities", MOST_PRIORITIES),
        ("THREADS", MOST_THREADS),
        ("MAX_PAYLOAD_BYTES", MOST_PAYLOAD),
        ("PREFETCH_BYTES", MOST_PREFETCH),
        ("max_attempts", MOST_ATTEMPTS),
        ("batch_size", MOST_OF_A_BATCH),
        ("commit_every", MOST_OF_A_BATCH),
        ("concurrency_limit", MOST_AT_ONCE),
        ("databases of all topics", MOST_DATABASES),
    ],
)
def test_a_whole_number(name: str, most: int) -> None:
    assert rows()[name] == ("1", f"{most:,}")


def test_texts_and_rates() -> None:
    table = rows()
    assert table["rate_limit"][1].startswith(f"{MOST_OF_A_RATE:,} ")
    assert table["active"][1].startswith(f"{HOURS_LENGTH} ")
    assert table["a replay's rate"] == (f"{LEAST_RATE} a second", f"{MOST_RATE:,.0f} a second")
    assert table["STATUS_TOKEN"][0].startswith("16 ")
    assert re.fullmatch(TOKEN, "x" * 16)
    assert not re.fullmatch(TOKEN, "x" * 15)
    assert table["content_type"][1].startswith(f"{CONTENT_TYPE_LENGTH} ")
    assert TOPIC_LENGTH == GROUP_LENGTH
    names = table["a topic's, a group's name"][1]
    assert names.startswith(f"{TOPIC_LENGTH} ")
    assert names.endswith(f" {TOPIC_LENGTH + len(DEAD_LETTER_SUFFIX)}")
    assert table["a database's alias"][1].startswith(f"{ALIAS_LENGTH} ")
    assert table["a user's name at a work item"][1] == f"{USER_LENGTH} characters"
    assert table["a comment on a work item"][1] == f"{COMMENT_LENGTH:,} characters"
    assert KEY_LENGTH == ID_LENGTH
    assert table["a key, an id"][1].startswith(f"{KEY_LENGTH} ")
