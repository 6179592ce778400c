"""Faults that are planted into the engine are found by runs of the harness, by real processes on real databases."""

from pathlib import Path

import pytest

from tests.soak import job_checks
from tests.soak.runs import SoakRun

pytestmark = pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.database("sqlite")
def test_runs_without_fencing_and_without_order_are_found_out(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("fencing", "order")]
    for folder in folders:
        folder.mkdir()
    common = ("--database=sqlite", "--seed=1", "--phases=none")
    with (
        SoakRun(folders[0], *common, "--minutes=0.5", "--only=stop-consumer", "--sabotage=fencing") as unfenced,
        SoakRun(folders[1], *common, "--minutes=0.2", "--only=join", "--sabotage=order") as unordered,
    ):
        assert unordered.wait(550) == 1, unordered.output
        assert unfenced.wait(550) == 1, unfenced.output
    assert unordered.report["violations"]["out of order"], unordered.output
    assert unfenced.report["violations"]["two owners"], unfenced.output


@pytest.mark.timeout(600)
@pytest.mark.database("sqlite")
@pytest.mark.parametrize(
    ("sabotage", "minutes", "violation"),
    [("progress", 0.2, "stood still"), ("starving", 0.6, "starved")],
    ids=["a partition is never read", "groups wait for the long handlers of another one"],
)
def test_a_calm_run_in_which_messages_wait_is_found_out(
    tmp_path: Path, sabotage: str, minutes: float, violation: str
) -> None:
    words = ("--database=sqlite", "--seed=1", "--calm", "--phases=none")
    with SoakRun(tmp_path, *words, f"--minutes={minutes}", f"--sabotage={sabotage}") as run:
        assert run.wait(550) == 1, run.output
    assert run.report["violations"][violation], run.output


@pytest.mark.timeout(600)
@pytest.mark.database("sqlite")
def test_a_run_that_forgets_everyday_jobs_is_found_out(tmp_path: Path) -> None:
    words = ("--database=sqlite", "--seed=1", "--minutes=0.3", "--calm", "--phases=none", "--sabotage=jobs")
    with SoakRun(tmp_path, *words) as run:
        assert run.wait(550) == 1, run.output
    found = {kind for kind, count in run.report["violations"].items() if count}
    assert found == job_checks.VIOLATIONS.keys(), run.output


@pytest.mark.timeout(900)
@pytest.mark.database("sqlite")
def test_a_run_in_which_the_end_of_an_epoch_is_read_too_early_is_found_out(tmp_path: Path) -> None:
    """What was left of the former epoch has to be there when the next one begins: that is a matter of moments."""
    common = ("--database=sqlite", "--only=alter", "--only=stop-consumer", "--phases=none", "--sabotage=ends")
    for seed in range(1, 5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with SoakRun(folder, *common, f"--seed={seed}", f"--minutes={0.3 * seed + 0.2}") as run:
            code = run.wait(550)
        if run.report["violations"]["out of order"]:
            break
    assert run.report["violations"]["out of order"], run.output
    assert code == 1, run.output


@pytest.mark.timeout(600)
@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_run_in_which_no_process_carries_on_a_change_of_partitions_is_found_out(
    database_name: str, tmp_path: Path
) -> None:
    words = (f"--database={database_name}", "--seed=1", "--minutes=0.2", "--only=alter", "--phases=none")
    with SoakRun(tmp_path, *words, "--sabotage=changes") as run:
        assert run.wait(550) == 1, run.output
    assert run.report["violations"]["changes left"], run.output


@pytest.mark.timeout(900)
@pytest.mark.database("mariadb")
def test_a_run_in_which_keys_are_published_to_other_databases_is_found_out(tmp_path: Path) -> None:
    words = ("--topology=databases", "--phases=none", "--rate=15", "--bulk-rate=150", "--seed=1", "--minutes=0.3")
    with SoakRun(tmp_path, *words, "--only=stop-consumer", "--sabotage=places") as run:
        assert run.wait(850) == 1, run.output
    assert run.report["violations"]["epochs wrong"], run.output


@pytest.mark.timeout(900)
@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_run_with_a_naive_horizon_is_found_out(database_name: str, tmp_path: Path) -> None:
    """Whether a message is passed is a matter of moments, and a busy machine's are few: some runs may go well."""
    for seed in range(1, 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        words = (f"--database={database_name}", f"--seed={seed}", "--only=join", "--phases=none", "--sabotage=horizon")
        with SoakRun(folder, *words, f"--minutes={0.2 * seed}") as run:
            code = run.wait(550)
        if run.report["violations"]["lost"]:
            break
    assert run.report["violations"]["lost"], run.output
    assert code == 1, run.output
