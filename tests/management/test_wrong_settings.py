"""A mistake in SQLQUEUE is told in a few lines by whatever is run, with the admin and the health urls in the site, and
with the router."""

import json

import pytest

from tests.processes import ManageCommand, ManageCommands, wait_until

pytestmark = pytest.mark.once

MISTAKES = [
    ({"THREADS": 0}, "THREADS must be a whole number from 1 to 1000, not 0"),
    ({"DATABASE": "queue"}, "DATABASE names the alias 'queue', which DATABASES does not have; it has: default"),
    ({"DATABASE": 5}, "DATABASE must be a string, a database alias, not 5"),
    ({"STATUS_TOKEN": "short"}, "STATUS_TOKEN must be a string of 16 or more visible ASCII characters"),
    ([], "SQLQUEUE must be a dict, not []"),
]
COMMANDS = [
    ("check",),
    ("check", "--deploy"),
    ("check", "--database", "default"),
    ("runserver", "--noreload", "127.0.0.1:0"),
    ("migrate",),
    ("makemigrations", "--check"),
    ("dumpdata",),
    ("runconsumers",),
    ("queuearchive", "nowhere"),
    ("queueanalytics",),
    ("queuebackfill", "orders", "nowhere.csv"),
    ("queuerehydrate", "nowhere", "orders"),
    ("queuedlq", "list"),
    ("queuedoctor",),
    ("queuemessage", "orders", "--id", "1"),
    ("queuepause", "orders"),
    ("queuepublish", "orders", "1"),
    ("queuegroup", "rewind", "orders", "--all-groups", "--from", "earliest"),
    ("queuepurge", "orders", "--no-input"),
    ("queuerecover", "--no-input"),
    ("queuereschedule", "orders", "mail"),
    ("queuerequests", "list"),
    ("queueresume", "orders"),
    ("queueschedules", "list"),
    ("queueschema",),
    ("queuestatus",),
    ("queuetail", "orders"),
]


def begin(manage: ManageCommands, options: object, *words: str) -> ManageCommand:
    """Run a command of a project with these options of SQLQUEUE."""
    env = {"SQLQUEUE": json.dumps(options), "DJANGO_SETTINGS_MODULE": "tests.management.routed"}
    return manage(*words, "--no-color", env=env)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_says_which_option_is_wrong(manage: ManageCommands, words: tuple[str, ...]) -> None:
    options, reason = MISTAKES[0]
    command = begin(manage, options, *words)
    assert command.wait() == 1, command.output
    assert reason in command.output
    assert "Traceback" not in command.output


@pytest.mark.parametrize(("options", "reason"), MISTAKES[1:])
def test_each_mistake_is_told(manage: ManageCommands, options: object, reason: str) -> None:
    command = begin(manage, options, "queuestatus")
    assert command.wait() == 1, command.output
    assert reason in command.output
    assert "Traceback" not in command.output


def test_a_server_that_restarts_on_changes_says_it_too(manage: ManageCommands) -> None:
    command = begin(manage, {"THREADS": 0}, "runserver", "127.0.0.1:0")
    wait_until(lambda: "System check identified" in command.output, message=lambda: command.output)
    assert "sqlqueue.E001" in command.output
    assert "ConfigurationError" not in command.output
