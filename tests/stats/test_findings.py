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
from sqlqueue.log.groups import register
from sqlqueue.log.layout_changes import Progress
from sqlqueue.models import Message
from sqlqueue.monitoring.gauges import StatsCollector
from sqlqueue.stats import findings as kinds
from sqlqueue.stats.attention import findings
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.findings import DEAD_LETTERS, FAILS, NO_CONSUMERS, UNREAD, Finding, Kind, command_line
from sqlqueue.stats.survey import survey
from sqlqueue.stats.topics import ChangeSurvey, change_advice
from tests.consuming import Consuming
from tests.factories import ActivityFactory, DeadLetterFactory, DeliveryStateFactory, this_minute
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
NAMES = ("crash-tests", "audit:v2")  # a topic and a group


KINDS = [one for one in vars(kinds).values() if isinstance(one, Kind)]


def found(kind: Kind) -> list[Finding]:
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


def parsed(command: str) -> list[str]:
    """Return the words after `manage.py` of a command that its own parser takes; fail if it does not."""
    program, script, name, *words = shlex.split(command)
    assert (program, script) == ("python", "manage.py")
    load_command_class("sqlqueue", name).create_parser("manage.py", name).parse_args(words)
    return [name, *words]


def quoted(text: str) -> list[str]:
    """Return the commands that a text names between quotes."""
    return re.findall("“(.*?)”", text)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_command_of_a_finding_works_as_it_is_printed(kind: Kind) -> None:
    publish(NAMES[0], 1)
    message = Message.objects.get()
    register(LOG, NAMES[1], NAMES[0], start=0)
    waits = {"message_offset": message.offset, "retry_count": 1, "invisible_until": timezone.now() + HOUR}
    DeliveryStateFactory.create(topic=NAMES[0], consumer_group=NAMES[1], partition=message.partition, **waits)
    DeadLetterFactory.create(original_topic=NAMES[0], original_offset=message.offset, failed_group=NAMES[1])
    one = Finding(kind, "", "", *NAMES).with_command("")
    name, *words = parsed(one.command)
    assert one.with_command("b").command == one.command, "what names a command keeps it"
    on_database = Finding(kind, "", "", *NAMES).with_command("b")
    assert parsed(on_database.command) == [name, *words, "--database", "b"]
    if name != "runconsumers":  # which runs until it is stopped
        said = run(name, *words, stdin="yes\n")
        assert said.code in ((0, 1) if name == "queuedoctor" else (0,)), said


def test_the_commands_of_findings_without_a_group_or_a_topic_work() -> None:
    publish(NAMES[0], 1)
    for kind in KINDS:
        for names in (NAMES[:1], ()):
            if kind in (UNREAD, DEAD_LETTERS) or "{group}" not in kind.command:
                one = Finding(kind, "", "", *names).with_command("")
                assert "''" not in one.command
                parsed(one.command)


def commands_in_texts() -> Iterator[str]:
    """Yield the commands that advices name in their sentences."""
    command = command_line(["queuetopic", "alter", "t", "--partitions", "8"], "")
    change = ChangeSurvey(4, 8, command, True, 0.0, Progress("gate", 1, 256))
    yield from quoted(change_advice("t", change))
    with translation.override(None):
        yield from quoted(found(NO_CONSUMERS)[0].advice)


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
