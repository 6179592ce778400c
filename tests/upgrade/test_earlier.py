"""Where the history of an earlier state is not to be had, that is said."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.upgrade import earlier
from tests.upgrade.earlier import NoHistory

pytestmark = pytest.mark.once


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is taken for the repository, with the sources of the package."""
    for name in (earlier.VERSION, f"{earlier.MIGRATIONS}/0001_initial.py", f"{earlier.MIGRATIONS}/0002_operations.py"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((earlier.ROOT / name).read_bytes())
    monkeypatch.setattr(earlier, "ROOT", tmp_path)
    monkeypatch.delenv("SINCE", raising=False)
    for each in (earlier._version_at, earlier._migrations_at, earlier._present_migrations):
        monkeypatch.setattr(earlier, each.__name__, each.__wrapped__)
    return tmp_path


def git(folder: Path, *words: str, day: int = 1) -> None:
    name = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    env = os.environ | {"GIT_COMMITTER_DATE": f"2026-01-{day:02} 12:00 +0000"}
    subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True, env=env)


def commit(folder: Path, day: int = 1) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--message=state", day=day)


def test_without_a_repository(elsewhere: Path) -> None:
    with pytest.raises(NoHistory, match=r"git tag failed: .*not a git repository.*name a wheel"):
        earlier.last_release()
    with pytest.raises(NoHistory, match="git rev-list failed"):
        earlier.before("0002_operations")


def test_without_its_history(elsewhere: Path) -> None:
    git(elsewhere, "init")
    commit(elsewhere)
    with pytest.raises(NoHistory, match=r"no state of another version than .*git fetch --unshallow"):
        earlier.last_release()
    with pytest.raises(NoHistory, match="no state without 0002_operations"):
        earlier.before("0002_operations")


def test_the_last_release_is_that_of_a_tag_or_the_last_commit_of_another_version(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(elsewhere, "init")
    version = elsewhere / earlier.VERSION
    for day, name in enumerate(("0.2.0.dev7", "0.2.0", "0.2.0", "0.2.1"), 1):
        version.write_text(f'__version__ = "{name}"\n# {version.read_text()}')
        commit(elsewhere, day)
    assert earlier.last_release() == earlier._git("rev-parse", "HEAD~1").strip()
    for tag, at in (("v0.2.1", "HEAD"), ("v0.2.0.dev7", "HEAD~3"), ("v0.2.0", "HEAD~2")):
        git(elsewhere, "tag", tag, at)
    assert earlier.last_release() == "v0.2.0"
    monkeypatch.setenv("SINCE", "HEAD~3")
    assert earlier.last_release() == "HEAD~3"


def test_a_wheel_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="no wheel"):
        earlier.unpacked(str(tmp_path / "sqlqueue-0.1-py3-none-any.whl"), tmp_path / "made")
