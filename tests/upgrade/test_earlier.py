"""Where the history of an earlier state is not to be had, that is said."""

import subprocess
from pathlib import Path

import pytest

from tests.upgrade import earlier
from tests.upgrade.earlier import NoHistory

pytestmark = pytest.mark.once


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is taken for the repository, with an initial migration."""
    monkeypatch.setattr(earlier, "ROOT", tmp_path)
    monkeypatch.delenv("SINCE", raising=False)
    (tmp_path / earlier.INITIAL).parent.mkdir(parents=True)
    write(tmp_path, "first")
    return tmp_path


def write(folder: Path, text: str, name: str = earlier.INITIAL) -> None:
    (folder / name).write_text(text)


def commit(folder: Path) -> str:
    name = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (("add", "--all"), ("commit", "--message=state")):
        subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)
    return earlier._git("rev-parse", "HEAD").strip()


def test_without_a_repository(elsewhere: Path) -> None:
    with pytest.raises(NoHistory, match=r"git status failed: .*not a git repository.*SINCE=HEAD~1"):
        earlier.oldest()


def test_the_oldest_state_is_that_of_the_last_change_of_the_initial_migration(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", str(elsewhere)], check=True, capture_output=True)
    commit(elsewhere)
    write(elsewhere, "changed")
    changed = commit(elsewhere)
    write(elsewhere, "a later one", "sqlqueue/migrations/0002_later.py")
    commit(elsewhere)
    assert earlier.oldest() == changed
    write(elsewhere, "being changed")
    with pytest.raises(NoHistory, match="not committed"):
        earlier.oldest()
    monkeypatch.setenv("SINCE", "HEAD~3")
    assert earlier.oldest() == "HEAD~3"


def test_a_revision_that_is_not_there(elsewhere: Path, tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="git archive failed"):
        earlier.unpacked("v0.1", tmp_path / "made")
