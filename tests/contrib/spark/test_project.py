"""Executors have no project of Django's: each gets the databases with its task, and keeps what it has of its own."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from sqlqueue import publish
from sqlqueue.contrib.spark.project import Project, of_django
from tests.processes import ROOT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("sqlite")]

# What a task does, in a process of its own: it publishes a message to each project's database, and reads it.
TASK = """
import json, pickle, sys
from pathlib import Path
import pyarrow as pa
{before}
projects = pickle.loads(Path(sys.argv[1]).read_bytes())
found = []
for number, project in enumerate(projects):
    with project.task() as alias:
        from sqlqueue.contrib.spark import publisher
        from sqlqueue.contrib.spark.options import SourceOptions
        from sqlqueue.contrib.spark.scan import Portion, TableScan
        from sqlqueue.contrib.spark.tables import MESSAGES
        row = {{"topic": "t", "id": "same", "payload": str(number)}}
        publisher.publish(SourceOptions(), iter([pa.RecordBatch.from_pylist([row])]))
        scan = TableScan(MESSAGES, MESSAGES.chosen(("payload",)))
        batches = scan.read(alias, Portion([], [(1, 2**62, "")]))
        found.append([row["payload"] for batch in batches for row in batch.to_pylist()])
from django.conf import settings
from django.db import connections
opened = [alias for alias in connections if connections[alias].connection is not None]
queue = settings.SQLQUEUE
print(json.dumps([found, opened, queue, settings.DATABASES.get("theirs", {{}}).get("NAME")]))
"""
OF_ONES_OWN = """
from django.conf import settings
import django
settings.configure(DATABASES={"theirs": {"ENGINE": "django.db.backends.sqlite3", "NAME": "theirs"}, "default": {}},
    INSTALLED_APPS=THEIR_APPS, SQLQUEUE={"DATABASE": "theirs"})
django.setup()
"""


def task(folder: Path, projects: list[Project], before: str = "", **environment: str) -> Any:
    """Run TASK; return what it has said, or its error."""
    packed = folder / "projects"
    packed.write_bytes(pickle.dumps(projects))
    command = [sys.executable, "-c", TASK.format(before=before), str(packed)]
    known = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(command, cwd=ROOT, env={**known, **environment}, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr


@pytest.fixture
def projects(tmp_path: Path) -> list[Project]:
    """This project, and one of the same settings with another database, each of whose logs is empty."""
    publish("t", None, id="first")
    file = tmp_path / "second.sqlite3"
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(file)])
    mine = of_django()
    other = {"default": {**mine.databases["default"], "NAME": str(file)}}
    return [mine, Project("default", other, mine.options)]


def test_a_process_without_django_sets_it_up_with_the_databases_of_its_tasks(
    projects: list[Project], tmp_path: Path
) -> None:
    found, opened, _, _ = task(tmp_path, projects)
    assert found == [["null", "0"], ["null", "1"]]
    assert opened == []


def test_a_django_of_ones_own_stays_as_it_is(projects: list[Project], tmp_path: Path) -> None:
    before = OF_ONES_OWN.replace("THEIR_APPS", '["django.contrib.contenttypes", "sqlqueue", "sqlqueue.contrib.spark"]')
    found, opened, queue, name = task(tmp_path, projects, before)
    assert found == [["null", "0"], ["null", "1"]]
    assert (opened, queue, name) == ([], {"DATABASE": "theirs"}, "theirs")


def test_the_project_that_the_environment_names_is_the_processs_own(projects: list[Project], tmp_path: Path) -> None:
    found, *_ = task(tmp_path, projects[:1], DJANGO_SETTINGS_MODULE="tests.settings")
    assert found == [["null", "0"]]
    assert "mysite" in task(tmp_path, projects[:1], DJANGO_SETTINGS_MODULE="mysite.settings")


def test_a_django_without_this_app_is_refused_in_words(projects: list[Project], tmp_path: Path) -> None:
    said = task(tmp_path, projects[:1], OF_ONES_OWN.replace("THEIR_APPS", "[]"))
    assert "has a Django without sqlqueue.contrib.spark: add it to INSTALLED_APPS there" in said
