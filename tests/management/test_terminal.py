"""Tables, progress and durations as text."""

import io

import pytest
from django.core.management.base import OutputWrapper

from sqlqueue.management.terminal import Progress, ago, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


COLUMNS = ("topic", "lag")
ROWS = [["orders", "≈1200"], ["[bold]mail", "7"]]


def test_a_table_for_terminals_pipes_and_files() -> None:
    assert table(COLUMNS, ROWS).splitlines() == [
        "topic         lag",
        "orders      ≈1200",
        "[bold]mail      7",
    ]


def test_progress_on_a_terminal() -> None:
    out = Terminal()
    with Progress("publish", 10, OutputWrapper(out)) as progress:
        progress.reach(4)
        progress.reach(10)
    assert out.getvalue() == "\rpublish: 4 of 10\rpublish: 10 of 10\n"


def test_no_progress_without_a_terminal() -> None:
    out = io.StringIO()
    with Progress("publish", 10, OutputWrapper(out)) as progress:
        progress.reach(10)
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "—"), (0.42, "0.4 s"), (61, "61 s"), (150, "2 min"), (7200, "2 h"), (86400 * 7, "7 d")],
)
def test_durations(seconds: float | None, said: str) -> None:
    assert ago(seconds) == said
