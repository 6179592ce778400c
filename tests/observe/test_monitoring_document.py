"""docs/operations/monitoring.md names every metric, as it is."""

import re

from prometheus_client import REGISTRY

from tests.processes import ROOT

ROW = re.compile(r"^\| `(sqlqueue_\w+)` \| (\w+) \| ([\w, ]*) \|", re.MULTILINE)


def exported() -> dict[str, tuple[str, str]]:
    """Return each metric's type and labels, by the name that Prometheus knows it by."""
    found = {}
    for collector in list(REGISTRY._collector_to_names):
        for family in collector.describe() if hasattr(collector, "describe") else ():
            if family.name.startswith("sqlqueue_"):
                name = family.name + "_total" * (family.type == "counter")
                labels = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
                found[name] = (family.type, ", ".join(labels))
    return found


def test_the_table_is_the_registry() -> None:
    document = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    assert {name: (kind, labels.strip()) for name, kind, labels in ROW.findall(document)} == exported()
