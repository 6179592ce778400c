"""A session says what it needs, and leaves the process able to go on."""

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pyspark.sql import SparkSession

from sqlqueue.contrib.spark import session as module
from sqlqueue.contrib.spark.session import in_utc, require_spark
from sqlqueue.exceptions import ConfigurationError
from tests.processes import ROOT


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="apt-get install openjdk-17-jre-headless"):
        require_spark()


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'sqlqueue\[spark\]'"):
        require_spark()


@pytest.mark.parametrize(
    "setting",
    [
        "spark.sql.session.timeZone=Europe/Berlin",
        "spark.executorEnv.TZ=America/New_York",
        "spark.driver.extraJavaOptions=-Xss4m -Duser.timezone=Europe/Berlin",
    ],
)
@pytest.mark.django_db
def test_another_time_zone_than_utc_is_refused_before_spark_starts(setting: str) -> None:
    with pytest.raises(CommandError, match=r"UTC.*(Berlin|New_York)"):
        call_command("queuebackfill", "t", "nothing.csv", conf=[tuple(setting.split("=", 1))])


def test_java_options_of_ones_own_keep_java_in_utc() -> None:
    name = "spark.driver.extraJavaOptions"
    assert in_utc({name: "-Xss4m"})[name] == "-Xss4m -Duser.timezone=UTC"
    assert in_utc({name: "-Duser.timezone=UTC -Xss4m"})[name] == "-Duser.timezone=UTC -Xss4m"
    assert in_utc({})[name] == "-Duser.timezone=UTC"


def test_what_executors_import_needs_no_project() -> None:
    modules = "scan, writer, stream, source, session, project"
    script = f"from sqlqueue.contrib.spark import {modules}; from django.apps import apps; print(apps.ready)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def test_a_session_on_this_machine_is_for_this_machine(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
