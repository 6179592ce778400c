"""Topics that people work on are declared in code, and what cannot work is refused where it is declared."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks

from sqlqueue import ConfigurationError
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.contrib.people import topics, work_on
from sqlqueue.contrib.people.checks import check_retention, check_targets
from sqlqueue.contrib.people.topics import NO_OPTIONS, PeopleTopic, topic_options
from tests.consuming import Consuming
from tests.processes import ManageCommands
from tests.test_imports import python

SETTINGS = """
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "sqlqueue"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{folder}/queue.sqlite3"}}}}
USE_TZ = True
"""
SCRIPT = """
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
import sqlqueue
from sqlqueue import testing
try:
    sqlqueue.HandOver
except sqlqueue.ConfigurationError as error:
    print(error)

@sqlqueue.consumer("t")
def handle(delivery):
    raise ValueError("no")

sqlqueue.publish("t", 1)
print(testing.drain())
from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.database.log import home_log
CollectorTask(home_log(), 0, 30).run_once()
from sqlqueue.stats.survey import survey
print([topic.counts for topic in survey(home_log()).topics if topic.counts])
"""
WRONG: dict[str, Any] = {
    "every_message": [None, 1, "people"],
    "decisions": [5, "", "\0", b"x", [], "a b", "t_dlq"],
    "notices": [5, "", "\0", b"x", [], "a b", "t_dlq"],
    "teams": [5, "", b"x", {}, 1.5, True, [3], [""], None],
    "within": [0, -1, "1", True, float("nan"), float("inf"), timedelta(days=40_000), []],
}


@pytest.mark.once
@pytest.mark.parametrize(("option", "value"), [(name, each) for name, values in WRONG.items() for each in values])
def test_an_option_that_cannot_work_is_refused(declared: dict[str, PeopleTopic], option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=option):
        work_on("t", **{option: value})
    assert not declared


@pytest.mark.once
@pytest.mark.parametrize("topic", ["", "a b", 5, None, "\0"])
def test_what_is_no_topic_is_refused(topic: Any) -> None:
    with pytest.raises(ConfigurationError):
        work_on(topic)


@pytest.mark.once
@pytest.mark.parametrize("option", ["decisions", "notices"])
def test_a_topic_whose_decisions_would_be_work_again_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match="work again"):
        work_on("t", every_message=True, **{option: "t"})
    work_on("t", **{option: "t"})


@pytest.mark.once
def test_a_topic_is_declared_once(declared: dict[str, PeopleTopic]) -> None:
    work_on("t", teams=["cash"], within=timedelta(hours=1))
    work_on("t", teams=("cash",), within=3600)
    with pytest.raises(ConfigurationError, match="twice"):
        work_on("t", teams=["boss"])
    assert declared == {"t": PeopleTopic(teams=("cash",), within=3600.0)}


@pytest.mark.once
def test_dead_letters_have_the_options_of_their_topic_unless_they_are_declared() -> None:
    work_on("t", teams="cash")
    work_on("u", teams="cash")
    work_on("u_dlq", teams="boss")
    assert [topic_options(name).teams for name in ("t_dlq", "u_dlq")] == [("cash",), ("boss",)]
    assert topic_options("other") == topic_options("other_dlq") == NO_OPTIONS


def test_the_consumer_of_every_message_is_the_group_people(consuming: Consuming) -> None:
    work_on("t", every_message=True)
    work_on("u")
    made = registry.consumers["people", "t"]
    assert (made.options.ordering, made.options.max_attempts) == ("none", None)
    assert [topic for _group, topic in registry.consumers] == ["t"]


@pytest.mark.django_db(transaction=True)
def test_a_web_process_knows_the_teams_before_anything_else_has_declared_them(manage: ManageCommands) -> None:
    """A process that has imported no consumers module must not take a topic for one without teams."""
    asked = (
        "from sqlqueue.contrib.people.admin.permissions import closed_topics;"
        "from django.contrib.auth.models import AnonymousUser; print(closed_topics(AnonymousUser()))"
    )
    command = manage("shell", "-v", "0", "-c", asked, env={"SQLQUEUE": '{"CONSUMERS_MODULE": "people_declared"}'})
    assert command.wait() == 0, command.output
    assert "['guarded', 'guarded_dlq']" in command.output


@pytest.mark.once
@pytest.mark.parametrize(
    "given", [[], 5, {"RETENTION": -1}, {"RETENTION": "1"}, {"RETENTION": True}, {"RETENTIONS": 1}]
)
def test_a_wrong_setting_is_an_error(settings: Any, given: Any) -> None:
    assert check_retention() == []
    settings.SQLQUEUE_PEOPLE = given
    assert [found.id for found in check_retention()] == ["sqlqueue_people.E001"]
    with pytest.raises(ConfigurationError):
        topics.retention()


@pytest.mark.django_db(transaction=True)
def test_a_topic_of_decisions_that_is_not_declared_is_warned_of(settings: Any) -> None:
    settings.SQLQUEUE = {"TOPICS": {"t": {}}, "STRICT_TOPICS": True}
    work_on("t", decisions="decided", notices="t")
    (found,) = check_targets(["default"])
    assert (found.id, "'decided'" in found.msg) == ("sqlqueue.W031", True)
    assert check_targets() == []
    assert "sqlqueue.W031" in {message.id for message in run_checks(databases=["default"])}


@pytest.mark.once
def test_without_the_app_the_name_in_the_package_says_what_is_missing(tmp_path: Path) -> None:
    """And everything else works: a handler that raises something else, a collection, a survey, and the checks."""
    (tmp_path / "settings_without.py").write_text(SETTINGS.format(folder=tmp_path))
    printed = python(SCRIPT, tmp_path, DJANGO_SETTINGS_MODULE="settings_without")
    assert printed.splitlines() == ["sqlqueue.HandOver needs 'sqlqueue.contrib.people' in INSTALLED_APPS", "1", "[]"]
