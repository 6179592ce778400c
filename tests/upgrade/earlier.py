"""Earlier states of sqlqueue, as wheels: built from the repository's history, or given as a file.

By default the earlier state is the last release, or, before there is a tag of one, the last commit at which sqlqueue
had another version. SINCE names another one: a revision (SINCE=HEAD~1), or a wheel's path.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION, MIGRATIONS = "sqlqueue/version.py", "sqlqueue/migrations"
RELEASES = "v[0-9]*"


class NoHistory(Exception):
    """The earlier state is not to be had here; the message says why, and what to do."""


def unpacked(revision: str, folder: Path) -> Path:
    """Build the wheel of a revision (or take the wheel that this is the path of), and return the folder that its files
    were unpacked to. Raises NoHistory."""
    wheel = Path(revision)
    if wheel.suffix != ".whl":
        source = folder / "source"
        source.mkdir(parents=True)
        archive = folder / "source.tar"
        _git("archive", f"--output={archive}", revision)
        _run("tar", "--extract", f"--file={archive}", f"--directory={source}")
        _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", f"--outdir={folder}", str(source))
        (wheel,) = folder.glob("*.whl")
    elif not wheel.is_file():
        raise NoHistory(f"There is no wheel {wheel}: SINCE names a revision, or the path of a wheel.")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder / "unpacked")
    return folder / "unpacked"


def version_in(folder: Path) -> str:
    """Return the version of the sqlqueue in a folder."""
    return _version((folder / VERSION).read_text())


def last_release() -> str:
    """Return the earlier state that SINCE names, else the last release's, else the last one with another version.
    Raises NoHistory."""
    if since := os.environ.get("SINCE", ""):
        return since
    tags = _git("tag", "--list", RELEASES, "--merged", "HEAD", "--sort=-creatordate").split()
    present = version_in(ROOT)
    return next((tag for tag in tags if _version_at(tag) != present), "") or _newest(
        lambda revision: _version_at(revision) != present, f"of another version than {present}"
    )


def last_migration() -> str:
    """Return the name of the present last migration."""
    return max(name for name in _present_migrations() if name[0].isdigit()).removesuffix(".py")


def before(migration: str) -> str:
    """Return the newest state without a migration, and so without what it brings. Raises NoHistory."""
    return _newest(lambda revision: f"{migration}.py" not in _migrations_at(revision), f"without {migration}")


def _newest(wanted: Callable[[str], bool], what: str) -> str:
    """Return the newest commit that is wanted, and from which there is a way on: whose migrations are all still here
    (on a branch they may have had other numbers)."""
    for revision in _revisions():
        if wanted(revision) and _migrations_at(revision) <= _present_migrations():
            return revision
    raise NoHistory(f"The history here has no state {what}. {REMEDY}")


REMEDY = (
    "An earlier state is needed, to run beside the present one: get the history (git fetch --unshallow --tags), or name"
    " a wheel of it: SINCE=sqlqueue-0.2.0-py3-none-any.whl"
)


def _revisions() -> Iterator[str]:
    yield from _git("rev-list", "HEAD").split()


@cache
def _version_at(revision: str) -> str:
    return _version(_git("show", f"{revision}:{VERSION}"))


@cache
def _migrations_at(revision: str) -> frozenset[str]:
    paths = _git("ls-tree", "--name-only", revision, f"{MIGRATIONS}/").split()
    return frozenset(path.rpartition("/")[2] for path in paths)


@cache
def _present_migrations() -> frozenset[str]:
    return frozenset(path.name for path in (ROOT / MIGRATIONS).glob("*.py"))


def _version(text: str) -> str:
    found = re.search(r'__version__ = "(.*)"', text)
    assert found, text
    return found[1]


def _git(*words: str) -> str:
    try:
        return _run("git", "-C", str(ROOT), *words)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or error
        raise NoHistory(f"git {words[0]} failed: {str(said).strip()}. {REMEDY}") from error


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True).stdout
