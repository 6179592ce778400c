"""What the code exports, as Prometheus knows it."""

from prometheus_client import REGISTRY

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def exported() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the type and the labels of each of sqlqueue's metrics, by its name, without `database`, which all have."""
    found = {}
    for collector in list(REGISTRY._collector_to_names):
        for family in collector.describe() if hasattr(collector, "describe") else ():
            if family.name.startswith("sqlqueue_"):
                labels = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
                found[family.name + "_total" * (family.type == "counter")] = (family.type, tuple(labels[1:]))
    return found


def series() -> dict[str, set[str]]:
    """Return the labels of each series that a query can name."""
    found = {}
    for name, (kind, labels) in exported().items():
        for suffix in SUFFIXES[kind]:
            le = {"le"} if suffix == "_bucket" else set()
            found[name.removesuffix("_total") + suffix if kind == "counter" else name + suffix] = {*labels, *le}
    return found
