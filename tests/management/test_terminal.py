"""Tables and progress as text."""

import io

from django.core.management.base import OutputWrapper

from sqlqueue.management.terminal import Progress, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


COLUMNS = ("topic", "lag")
ROWS = [["orders", "≈ 1,200"], ["[bold]mail", "7"]]


def test_a_table_for_terminals_pipes_and_files() -> None:
    assert table(COLUMNS, ROWS).splitlines() == [
        "topic           lag",
        "orders      ≈ 1,200",
        "[bold]mail        7",
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
