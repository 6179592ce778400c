"""What is found of groups that work badly before there are dead letters, and the command that each finding names."""

import json
import re
import shlex
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.core.management import load_command_class
from django.test import Client
from django.utils import timezone, translation

from sqlqueue import Delivery, publish, publish_many
from sqlqueue.leases import heartbeat
from sqlqueue.log.change_state import Progress
from sqlqueue.log.groups import register
from sqlqueue.models import Message
from sqlqueue.monitoring.gauges import StatsCollector
from sqlqueue.stats import change_texts, finding_kinds, pace_attention, process_attention
from sqlqueue.stats.attention import findings
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.changes import ChangeSurvey
from sqlqueue.stats.finding_commands import COMMANDS, command_line, with_commands
from sqlqueue.stats.finding_kinds import FAILS, FALLS_BEHIND, NOTE, Finding
from sqlqueue.stats.survey import survey
from tests.consuming import Consuming
from tests.factories import ActivityFactory, DeadLetterFactory, DeliveryStateFactory, this_minute
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
NAMES = ("crash-tests", "audit:v2")  # a topic and a group


def found(kind: str) -> list[Finding]:
    return [one for one in findings(survey(LOG)) if one.kind == kind]


def minutes(**columns: list[float]) -> None:
    """Record the last minutes of group g, the oldest first."""
    count = len(next(iter(columns.values())))
    for number in range(count):
        its = {name: values[number] for name, values in columns.items()}
        ActivityFactory.create(minute=this_minute() - timedelta(minutes=count - 1 - number), **its)


@pytest.fixture
def served() -> None:
    """A group with a message that was published an hour ago, and a process that serves it and settled lately."""
    publish("t", 1)
    Message.objects.update(created_at=this_minute() - HOUR)
    register(LOG, "g", "t", start=0)
    heartbeat.beat(LOG, "a", [("g", "t")], 60)


def test_a_handler_that_fails_for_everything_is_found_before_there_are_dead_letters(consuming: Consuming) -> None:
    @consuming.consumer("t", group="g", max_attempts=5)
    def fail(delivery: Delivery) -> None:
        raise ValueError("no")

    publish_many("t", range(12))
    consuming.drain()
    heartbeat.beat(LOG, "a", [("g", "t")], 60)
    assert not Message.objects.dead_letters().exists()
    [finding] = found(FAILS)
    assert finding.text == "100 % of the attempts of g of t have failed in the last minutes."
    assert "Then let what has failed be tried at once" in finding.advice
    said = run("queuedoctor").out
    assert f"groups: {finding.text}\n         → {finding.advice}\n           {finding.command}\n" in said
    recent_survey.forget()
    [share] = [family for family in StatsCollector().collect() if family.name == "sqlqueue_failed_share"]
    assert [sample.value for sample in share.samples] == [1.0]


@pytest.mark.parametrize("counts", [{"acked": [90, 90], "retried": [80, 90]}, {"acked": [0, 0], "retried": [3, 4]}])
def test_failures_that_are_fewer_or_few_are_none(served: None, counts: dict[str, list[float]]) -> None:
    minutes(**counts)
    assert found(FAILS) == []


OLDER: dict[str, list[float]] = {"acked": [60, 60, 60], "lag": [1, 1, 1], "oldest_age": [3_400, 3_460, 3_520]}


@pytest.mark.parametrize("lag", [[1, 1, 1], [1, 3, 5]])
def test_a_group_whose_oldest_message_gets_older_is_found_although_it_works(
    served: None, monkeypatch: pytest.MonkeyPatch, lag: list[float]
) -> None:
    minutes(**OLDER | {"lag": lag})
    monkeypatch.setattr("sqlqueue.stats.survey.stuck_partitions", lambda *_: [])
    [finding] = found(FALLS_BEHIND)
    assert re.search(r"it settles \d\d messages a minute, the oldest has waited for 1 h", finding.text)


def test_a_large_lag_that_grows_is_found(served: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_attention, "MUCH_LAG", 2)
    Message.objects.all().delete()
    publish_many("t", range(3))
    minutes(acked=[60, 60, 60], lag=[1, 2, 3], oldest_age=[1, 1, 1])
    [finding] = found(FALLS_BEHIND)
    assert finding.text.endswith("and the lag is 3.")
    monkeypatch.setattr(pace_attention, "MUCH_LAG", 3)
    assert found(FALLS_BEHIND) == []


@pytest.mark.parametrize("lag", [[3, 3, 3], [1, 5, 3], [2, 3]])
def test_one_that_does_not_grow_all_the_time_is_none(
    served: None, monkeypatch: pytest.MonkeyPatch, lag: list[float]
) -> None:
    monkeypatch.setattr(pace_attention, "MUCH_LAG", 0)
    monkeypatch.setattr("sqlqueue.stats.survey.stuck_partitions", lambda *_: [])
    minutes(lag=lag, oldest_age=[1] * len(lag))
    assert found(FALLS_BEHIND) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"oldest_age": [5_000, 4_400, 3_520]},
        {"oldest_age": [3_518, 3_519, 3_520]},
        {"lag": [300, 200, 100]},  # a bulk of one time that is worked off
        {"lag": [1, 300, 200], "oldest_age": [0, 60, 120]},  # one that was just published
    ],
)
def test_a_group_that_catches_up_does_not_fall_behind(
    served: None, monkeypatch: pytest.MonkeyPatch, changed: dict[str, list[float]]
) -> None:
    monkeypatch.setattr("sqlqueue.stats.survey.stuck_partitions", lambda *_: [])
    if changed["oldest_age" if "oldest_age" in changed else "lag"][0] == 0:
        Message.objects.update(created_at=this_minute())
    minutes(**OLDER | changed)
    assert found(FALLS_BEHIND) == []


def test_one_that_is_stuck_is_told_as_that_alone(served: None) -> None:
    minutes(**OLDER)
    assert {one.kind for one in findings(survey(LOG)) if one.group} >= {finding_kinds.STUCK}
    assert found(FALLS_BEHIND) == []


def parsed(command: str) -> list[str]:
    """Return the words after `manage.py` of a command that its own parser takes; fail if it does not."""
    program, script, name, *words = shlex.split(command)
    assert (program, script) == ("python", "manage.py")
    load_command_class("sqlqueue", name).create_parser("manage.py", name).parse_args(words)
    return [name, *words]


def quoted(text: str) -> list[str]:
    """Return the commands that a text names between quotes."""
    return re.findall("“(.*?)”", text)


@pytest.mark.parametrize("kind", sorted(COMMANDS))
def test_the_command_of_a_finding_works_as_it_is_printed(kind: str) -> None:
    publish(NAMES[0], 1)
    message = Message.objects.get()
    register(LOG, NAMES[1], NAMES[0], start=0)
    waits = {"message_offset": message.offset, "retry_count": 1, "invisible_until": timezone.now() + HOUR}
    DeliveryStateFactory.create(topic=NAMES[0], consumer_group=NAMES[1], partition=message.partition, **waits)
    DeadLetterFactory.create(original_topic=NAMES[0], original_offset=message.offset, failed_group=NAMES[1])
    [one] = with_commands([Finding(kind, NOTE, "", "", "", *NAMES)], "")
    name, *words = parsed(one.command)
    [on_database] = with_commands([one], "b")
    assert on_database.command == one.command, "what names a command keeps it"
    [on_database] = with_commands([Finding(kind, NOTE, "", "", "", *NAMES)], "b")
    assert parsed(on_database.command) == [name, *words, "--database", "b"]
    if name != "runconsumers":  # which runs until it is stopped
        said = run(name, *words, stdin="yes\n")
        assert said.code in ((0, 1) if name == "queuedoctor" else (0,)), said


def test_the_commands_of_findings_without_a_group_or_a_topic_work() -> None:
    publish(NAMES[0], 1)
    for kind in COMMANDS:
        for names in (NAMES[:1], ()):
            if kind in (finding_kinds.UNREAD, finding_kinds.DEAD_LETTERS) or "{group}" not in COMMANDS[kind]:
                [one] = with_commands([Finding(kind, NOTE, "", "", "", *names)], "")
                assert "''" not in one.command
                parsed(one.command)


def commands_in_texts() -> Iterator[str]:
    """Yield the commands that advices name in their sentences."""
    command = command_line(["queuetopic", "alter", "t", "--partitions", "8"], "")
    change = ChangeSurvey(4, 8, command, True, 0.0, Progress("gate", 1, 256))
    yield from quoted(change_texts.advice("t", change))
    with translation.override(None):
        yield from quoted(next(iter(process_attention.of_processes(survey(LOG)))).advice)


def test_the_commands_that_advices_name_are_whole() -> None:
    register(LOG, "g", "t")
    commands = list(commands_in_texts())
    assert len(commands) == 3
    for command in commands:
        parsed(command)


def test_the_doctor_and_the_admin_print_the_commands(admin_client: Client) -> None:
    publish("t", 1)
    register(LOG, "old-audit", "t", start=0)
    said = json.loads(run("queuedoctor", "--json").out)["findings"]
    commands = [parsed(one["command"]) for one in said if one["command"]]
    assert ["queuegroup", "remove", "t", "old-audit"] in commands
    assert ["runconsumers", "--topic", "t", "--group", "old-audit"] in commands
    assert (
        "<code>python manage.py runconsumers --topic t"
        in admin_client.get("/admin/sqlqueue/overview/").content.decode()
    )


def test_every_kind_has_a_command() -> None:
    kinds = {value for name, value in vars(finding_kinds).items() if name.isupper() and isinstance(value, str)}
    assert set(COMMANDS) == kinds - {finding_kinds.ERROR, finding_kinds.WARNING, finding_kinds.NOTE}
