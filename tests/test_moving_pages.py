"""Every row of the pages for those who come from elsewhere is executed by tests, which tests/moving_rows.py names."""

import re

import pytest

from tests.documents import ROOT
from tests.moving_rows import PAGES

pytestmark = pytest.mark.once

TESTS = ROOT / "tests"
FOLDER = ROOT / "docs" / "moving"


def rows(page: str) -> list[str]:
    """Return the first cell of each row of the page's tables."""
    found: list[str] = []
    lines = (FOLDER / page).read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("|") and not line.startswith("| ---") and not lines[number + 1].startswith("| ---"):
            found.append(line.strip("|").split(" | ")[0].strip())
    return found


def test_there_is_no_other_page() -> None:
    assert {page.name for page in FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_row_is_listed_and_every_one_that_is_listed_is_there(page: str) -> None:
    assert rows(page) == list(PAGES[page])


@pytest.mark.parametrize("page", PAGES)
def test_what_executes_a_row_is_there(page: str) -> None:
    named = {test for tests in PAGES[page].values() for test in tests}
    assert all(PAGES[page].values())
    missing = []
    for test in sorted(named):
        path, _, name = test.partition("::")  # of a whole file it could not be seen which test executes the row
        there = (TESTS / path).is_file()
        if not there or not name or not re.search(rf"def {name}\b", (TESTS / path).read_text()):
            missing.append(test)
    assert missing == []
