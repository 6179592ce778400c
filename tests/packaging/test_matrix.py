"""`make test-matrix` runs the suite with each Python that is here, names the others, and fails if one fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import django
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HERE, GONE = "%d.%d" % sys.version_info[:2], "9.9"  # noqa: UP031
pytestmark = pytest.mark.once


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Commands that stand before all others: this Python under its own name, another that runs nothing, and a `make`
    that notes what it was asked for, and ends the suite with the status in the file `status`."""
    commands = {
        f"python{HERE}": f'exec "{sys.executable}" "$@"',
        f"python{GONE}": "echo 'no such version' >&2; exit 127",
        "make": f"""
            echo "$@" >>"{tmp_path}/asked"
            for word; do
                case $word in
                VENV=*) folder=${{word#VENV=}} ;;
                */.newest) mkdir -p "$folder/bin" && ln -sf "$(command -v python{HERE})" "$folder/bin/python" ;;
                test-sqlite) exit "$(cat "{tmp_path}/status")" ;;
                esac
            done
        """,
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def matrix(folder: Path, *versions: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "status").write_text(str(status))
    return subprocess.run(
        [ROOT / "requirements/matrix.sh", "make", *versions],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("status", "word"), [(0, "passed"), (2, "failed")])
def test_each_that_is_here_is_run_and_the_others_are_named(folder: Path, status: int, word: str) -> None:
    done = matrix(folder, GONE, HERE, "8.8", status=status)
    assert done.stdout.splitlines()[-3:] == [
        f"Python {GONE}: not found",
        f"Python {HERE}, Django {django.get_version()}: {word}",
        "Python 8.8: not found",
    ]
    assert done.returncode == bool(status)
    own = f"PYTHON=python{HERE} VENV=.venv-{HERE}"
    assert (folder / "asked").read_text().splitlines() == [f"{own} .venv-{HERE}/.newest", f"{own} test-sqlite"]


def test_what_cannot_be_installed_is_named_and_the_next_one_is_run(folder: Path) -> None:
    (folder / "make").write_text("#!/bin/sh\nexit 2\n")
    done = matrix(folder, HERE, GONE)
    assert done.stdout.splitlines()[-2:] == [
        f"Python {HERE}: its virtual environment could not be made",
        f"Python {GONE}: not found",
    ]
    assert done.returncode == 1


def test_without_any_nothing_has_been_shown(folder: Path) -> None:
    done = matrix(folder, GONE, "8.8")
    assert done.returncode == 1
    assert "the suite has not been run" in done.stderr


def test_the_classifiers_name_no_python_that_it_does_not_look_for() -> None:
    looked_for = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert looked_for
    assert named
    assert set(named) <= set(looked_for[1].split())
