"""docs/operations/monitoring.md names every metric and every alert, as they are."""

import re

from tests.monitoring.exported import exported
from tests.monitoring.test_alerts import rules
from tests.processes import ROOT

ROW = re.compile(r"^\| `(sqlqueue_\w+)` \| (\w+) \| ([\w, ]*) \|", re.MULTILINE)


DOCUMENT = ROOT / "docs" / "operations" / "monitoring.md"


def test_the_table_is_the_registry() -> None:
    document = DOCUMENT.read_text()
    told = {name: (kind, tuple(labels.replace(",", " ").split())) for name, kind, labels in ROW.findall(document)}
    assert told == exported()


def test_all_alerts_are_told() -> None:
    assert set(re.findall(r"`(Sqlqueue\w+)`", DOCUMENT.read_text())) == {rule["alert"] for rule in rules()}
