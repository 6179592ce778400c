"""Tables and progress bars, with rich and without."""

import io

import pytest
from django.core.management.base import OutputWrapper

from sqlqueue.management import terminal
from sqlqueue.management.terminal import Progress, ago, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


COLUMNS = ("topic", "lag")
ROWS = [["orders", "≈1200"], ["[bold]mail", "7"]]


def test_a_plain_table_for_pipes_and_files() -> None:
    assert table(COLUMNS, ROWS, io.StringIO()).splitlines() == [
        "topic         lag",
        "orders      ≈1200",
        "[bold]mail      7",
    ]


def test_a_terminal_without_rich_has_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "RICH", False)
    assert table(COLUMNS, ROWS, Terminal()) == table(COLUMNS, ROWS, io.StringIO())


def test_a_terminal_with_rich() -> None:
    said = table(COLUMNS, ROWS, Terminal())
    assert "─" in said
    assert "[bold]mail" in said  # names are no markup


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for rich in (True, False):
        monkeypatch.setattr(terminal, "RICH", rich)
        out = Terminal()
        with Progress("publish", 10, OutputWrapper(out)) as progress:
            progress.reach(4)
            progress.reach(10)
        assert "publish" in out.getvalue()
        assert ("10/10" if rich else "10 of 10") in out.getvalue()


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
