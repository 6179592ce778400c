"""`queueschedules`: what operators see and do with periodic schedules."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tests.log.test_ticks import declared, ids, row, schedule

pytestmark = pytest.mark.django_db(transaction=True)


def run(*words: str) -> str:
    output = StringIO()
    call_command("queueschedules", *words, stdout=output)
    return output.getvalue()


def test_an_empty_list_says_where_schedules_come_from() -> None:
    assert "consumer processes store them" in run("list")
    assert "consumer processes store them" in run("upcoming")


def test_the_list() -> None:
    declared(schedule("nightly", 86_400, group="night"), schedule("sync", 300, topic="sync", group=""))
    text = run("list")
    assert "nightly" in text
    assert "every 0:05:00" in text
    assert "(all)" in text


def test_the_list_as_json() -> None:
    declared(schedule("nightly", 86_400))
    (found,) = json.loads(run("list", "--json"))
    assert (found["name"], found["topic"], found["state"], found["last_tick"]) == (
        "nightly",
        "periodic",
        "active",
        None,
    )
    assert found["next_tick"] == row("nightly").next_tick.isoformat()


def test_pause_resume_and_run() -> None:
    declared(schedule("nightly", 86_400))
    assert run("pause", "nightly") == "nightly is paused.\n"
    assert run("pause", "nightly") == "nightly was already paused.\n"
    assert "paused" in run("list")
    assert run("resume", "nightly") == "nightly is resumed.\n"
    assert run("resume", "nightly") == "nightly was not paused.\n"
    assert run("run", "nightly") == f"Published {ids()[0]}.\n"


def test_upcoming() -> None:
    declared(schedule("nightly", 86_400), schedule("hourly", 3_600))
    assert run("upcoming", "--days", "2").count("hourly") == 48
    assert len(json.loads(run("upcoming", "nightly", "--json"))) == 7
    assert "Nothing is due" in run("upcoming", "nightly", "--days", "0")


def test_an_unknown_name_is_refused() -> None:
    declared(schedule("nightly", 86_400))
    for operation in ("pause", "resume", "run", "upcoming"):
        with pytest.raises(CommandError, match="Did you mean 'nightly'"):
            run(operation, "nighty")
