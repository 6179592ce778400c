"""Definitions of periodic schedules, and SQLQUEUE["SCHEDULES"]."""

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from sqlqueue.core.keys import ID_LENGTH
from sqlqueue.core.periodic import (
    SCHEDULE_LENGTH,
    Recurrence,
    checked_definition,
    configured,
    due_ticks,
    from_text,
    tick_id,
)
from sqlqueue.exceptions import ConfigurationError

pytestmark = pytest.mark.once

WELL = {"cron": "*/5 * * * *", "topic": "sync"}


def test_a_definition_comes_back_as_it_was_stored() -> None:
    cron = Recurrence("0 3 * * *", timezone="Europe/Berlin")
    for recurrence in (cron, Recurrence(every=1.5)):
        made = checked_definition("n", recurrence, "all", "t", "kü", "g", '{"ü": null}')
        assert from_text("n", made.as_text()) == made


def test_definitions_of_another_name_or_anything_else_have_another_digest() -> None:
    parts: list[Any] = [Recurrence(every=60), "last", "t", "k", "g", None]
    others: list[Any] = [Recurrence(every=61), "all", "u", "l", "h", "null"]
    digests = {checked_definition("n", *parts).digest, checked_definition("m", *parts).digest}
    for number, other in enumerate(others):
        digests.add(checked_definition("n", *[other if at == number else part for at, part in enumerate(parts)]).digest)
    assert len(digests) == 2 + len(others)


def test_a_clock_that_went_back_moves_nothing_back() -> None:
    made = checked_definition("n", Recurrence(every=60), "all", "t", "", "")
    through = datetime(2026, 1, 1, tzinfo=timezone.utc)
    found = due_ticks(made, through, through, through - timedelta(hours=1), 100)
    assert (found.ticks, found.through, found.complete) == ([], through, True)


def test_the_longest_name_makes_an_id() -> None:
    latest = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc)
    assert len(tick_id("n" * SCHEDULE_LENGTH, latest)) <= ID_LENGTH
    assert tick_id("n", latest.replace(microsecond=0)) == "n@9999-12-31T23:59:59Z"


def test_the_schedules_of_the_settings() -> None:
    problems: list[str] = []
    found = configured(
        {
            "sync": {**WELL, "payload": {}, "key": "k", "timezone": "Europe/Berlin"},
            "five": {"every": timedelta(minutes=5), "topic": "t", "missed": "skip", "group": "g"},
        },
        problems,
    )
    assert problems == []
    assert found["sync"].payload_of(datetime(2026, 1, 1, tzinfo=timezone.utc)) == {}
    assert (found["sync"].key, found["sync"].group, found["sync"].missed) == ("k", "", "last")
    assert found["five"].payload_of(datetime(2026, 1, 1, tzinfo=timezone.utc)) == {
        "schedule": "five",
        "tick": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("sync", {"cron": "0 0 30 2 *", "topic": "t"}, "never fires"),
        ("sync", {"topic": "t"}, "neither is given"),
        ("sync", {"cron": "* * * * *"}, "the topic is missing"),
        ("sync", {**WELL, "topic": "t_dlq" * 21}, "is the most"),
        ("sync", {**WELL, "topic": "a b"}, "is not a name"),
        ("sync", {**WELL, "corn": 5}, "no option 'corn'. Did you mean 'cron'"),
        ("sync", {**WELL, "payload": {1, 2}}, "the payload cannot be JSON"),
        ("sync", {**WELL, "payload": float("nan")}, "the payload cannot be JSON"),
        ("sync", {**WELL, "payload": (1, 2)}, "would not come back equal"),
        ("sync", {**WELL, "payload": {1: 2}}, "would not come back equal"),
        ("sync", {**WELL, "missed": "never"}, "missed must be"),
        ("sync", {**WELL, "key": None}, "key must be a string"),
        ("sync", {**WELL, "group": 5}, "is not a name"),
        ("sync", {**WELL, "timezone": "Mars"}, "is not known"),
        ("sync", "*/5 * * * *", "it must be a dict"),
        ("a b", WELL, "give it another name"),
        ("n" * 101, WELL, "100 is the most: give it another name"),
        (5, WELL, "give it another name"),
    ],
)
def test_what_cannot_be_is_a_problem_of_the_settings(name: Any, options: Any, why: str) -> None:
    problems: list[str] = []
    assert configured({name: options}, problems) == {}
    (problem,) = problems
    assert problem.startswith(f"SCHEDULES[{name!r}]: ")
    assert why in problem


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"cron": "x"}', '{"every": 5}'])
def test_what_was_stored_and_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        from_text("n", text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("every", 0.0),
        ("every", -5.0),
        ("every", 1e-9),
        ("every", float("inf")),
        ("every", "x"),
        ("payload", "not JSON"),
        ("payload", 5),
        ("payload", "1" * 5_000),
    ],
)
def test_what_was_stored_and_cannot_be_computed_is_refused(name: str, value: Any) -> None:
    """Otherwise its error would come where the ticks of all schedules are computed."""
    stored = json.loads(checked_definition("n", Recurrence(every=5), "all", "t", "", "").as_text())
    with pytest.raises(ConfigurationError):
        from_text("n", json.dumps({**stored, name: value}))


def test_a_stored_time_zone_that_is_unknown_here_is_refused() -> None:
    stored = checked_definition("n", Recurrence("* * * * *"), "all", "t", "", "").as_text().replace('"UTC"', '"Mars"')
    with pytest.raises(ConfigurationError, match="is not known"):
        from_text("n", stored)
