"""The defaults of `@consumer` and `@task`, which stand side by side in the documentation, are those of the code."""

from datetime import timedelta

import pytest

from sqlqueue.consumers.declare.registry import DEFAULTS
from sqlqueue.tasks import policy
from tests.documents import ROOT

pytestmark = pytest.mark.once

TEXTS = {60.0: "60 s", 1.0: "1 s", 3600.0: "1 h", 86_400.0: "1 day", timedelta(days=7): "7 days"}
DURATIONS = ("visibility_timeout", "backoff", "max_backoff", "keep_results")


def text(name: str, value: object) -> str:
    return TEXTS[value] if name in DURATIONS and value is not None else str(value)


def test_the_table_has_every_option_that_tasks_have_with_both_defaults() -> None:
    table = (ROOT / "docs/tasks.md").read_text().split("| option | `@consumer` | `@task` |")[1].split("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[1:]]
    of_tasks = {**policy.DEFAULTS, "ordering": "none"}
    assert {name: tuple(both) for name, *both in rows} == {
        name: (text(name, DEFAULTS[name]), text(name, value)) for name, value in of_tasks.items()
    }
