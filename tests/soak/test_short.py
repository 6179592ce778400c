"""Short runs, with fixed seeds: under fire, and through phases; `make soak` has the long ones."""

from pathlib import Path

import pytest

from tests.servers.private import PrivateServer
from tests.soak.runs import SoakRun

SECONDS, SEED = 40, 2026


@pytest.mark.timeout(600)
@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_minute_under_fire_loses_nothing_and_breaks_no_promise(
    database_name: str, database_server: PrivateServer, tmp_path: Path
) -> None:
    # Half of the usual bulk: beside everyday jobs the rest would only take its time to drain.
    rates = ("--bulk-rate=120",)
    words = (f"--database={database_name}", f"--minutes={SECONDS / 60}", f"--seed={SEED}", "--phases=none", *rates)
    with SoakRun(tmp_path, *words) as run:
        status = run.wait(550)
    assert status == 0, run.output
    report = run.report
    assert report["messages committed"] > 500
    assert report["kill -9"] >= 4, "the nemesis has slept"
    assert report["server deaths"] >= 1
    assert report["alterations"], "no topic's partitions were changed"
    assert not any(report["violations"].values())


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.database("mariadb", "mysql")
def test_a_server_in_another_language_and_idle_connections_stop_nothing(
    database_name: str, database_server: PrivateServer, tmp_path: Path
) -> None:
    words = (f"--database={database_name}", "--minutes=0.5", "--seed=1", "--rate=10", "--bulk-rate=40", "--calm")
    with SoakRun(tmp_path, *words, "--phases=language,idle") as run:
        status = run.wait(550)
    assert status == 0, run.output
    report = run.report
    assert {name.rstrip("0123456789") for name in report["phases"]} == {"language", "idle"}
    assert not report["not done"]
    assert not any(report["violations"].values())
