"""The commands before `migrate` has been run, and their options."""

from pathlib import Path

import pytest

from tests.processes import ManageCommands

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "words",
    [
        ("queuestatus",),
        ("queuetail", "orders", "--no-follow"),
        ("queuepublish", "orders", "1"),
        ("queuepause", "orders"),
        ("queueresume", "orders"),
        ("queuedlq", "list"),
        ("queuemessage", "orders", "--id", "1"),
        ("queuegroup", "rewind", "orders", "--all-groups", "--from", "earliest"),
        ("queueschedules", "list"),
        ("queueschedules", "run", "nightly"),
        ("queuepurge", "orders", "--no-input"),
        ("queuerecover", "--no-input"),
        ("queuerequests", "list"),
        ("queuetopic", "create", "orders"),
        ("queuereschedule", "orders", "mail"),
        ("runconsumers", "--check"),
        ("runconsumers", "--drain"),
    ],
    ids=" ".join,
)
def test_before_the_tables_are_there_a_command_says_how_to_make_them(
    manage: ManageCommands, tmp_path: Path, words: tuple[str, ...]
) -> None:
    command = manage(*words, env={"DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"})
    assert command.wait() == 1, command.output
    assert "python manage.py migrate" in command.output
    assert "Traceback" not in command.output


def test_djangos_common_options_may_stand_behind_an_operation(manage: ManageCommands) -> None:
    common = ("--verbosity", "0", "--no-color", "--skip-checks", "--settings", "tests.settings", "--pythonpath", ".")
    for words in (("queuedlq", "list"), ("queueschedules", "list")):
        command = manage(*words, *common)
        assert command.wait() == 0, command.output
