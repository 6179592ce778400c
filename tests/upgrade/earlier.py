"""Earlier states of sqlqueue, from the repository's history.

By default the earlier state is the oldest one that migrations lead from: that of the last change of the initial
migration. SINCE names another revision (SINCE=HEAD~1).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent.parent
INITIAL: Final = "sqlqueue/migrations/0001_initial.py"
# The last state with the migrations of development versions, which the present tables are not migrated from.
LAST_OF_DEVELOPMENT: Final = "c76eb3813a91fd2119393623bc9175cc088ca6db"
REMEDY: Final = (
    "An earlier state is needed, to run beside the present one: get the history (git fetch --unshallow), or name"
    " another revision: SINCE=HEAD~1"
)


class NoHistory(Exception):
    """The earlier state is not to be had here; the message says why, and what to do."""


def oldest() -> str:
    """Return the revision that SINCE names, else the oldest one that migrations lead from. Raises NoHistory."""
    if since := os.environ.get("SINCE", ""):
        return since
    if changed := _git("status", "--porcelain", "--", INITIAL):
        raise NoHistory(f"The initial migration is changed, and not committed: {changed.strip()}.")
    return _git("log", "--max-count=1", "--format=%H", "--", INITIAL).strip()


def unpacked(revision: str, folder: Path) -> Path:
    """Put the package of a revision into a folder, and return that. Raises NoHistory."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "sqlqueue.tar"
    _git("archive", f"--output={archive}", revision, "sqlqueue")
    _run("tar", "--extract", f"--file={archive}", f"--directory={folder}")
    return folder


def _git(*words: str) -> str:
    try:
        return _run("git", "-C", str(ROOT), *words)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or error
        raise NoHistory(f"git {words[0]} failed: {str(said).strip()}. {REMEDY}") from error


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True).stdout
