"""`make test` tries what fails once more: tests of time only."""

import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT

TESTS = """
import pytest

tried = []

@pytest.mark.of_time
def test_of_time():
    tried.append("time")
    assert tried.count("time") > 1

def test_of_a_promise():
    tried.append("promise")
    assert tried.count("promise") > 1
"""


def test_only_a_test_of_time_is_run_once_more(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = of_time\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    words = ("-p", "tests.reruns", "-p", "no:django", "--reruns=1", f"--rootdir={tmp_path}", "-c", "pytest.ini")
    command = [sys.executable, "-m", "pytest", "-q", *words, "test_some.py"]
    environment = {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "1 failed, 1 passed, 1 rerun" in ran.stdout, ran.stdout + ran.stderr
    assert "FAILED test_some.py::test_of_a_promise" in ran.stdout
