"""The alert rules and the dashboard: promtool accepts them, the rules fire on what they are for, and both ask for what
the code exports."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.exported import series
from tests.processes import ROOT

pytestmark = pytest.mark.once

RULES = ROOT / "docs" / "operations" / "alerts.yml"
DASHBOARD = ROOT / "docs" / "operations" / "grafana-dashboard.json"
UNIT_TESTS = ROOT / "tests" / "monitoring" / "alerts.test.yml"
SELECTOR = re.compile(r"(sqlqueue_\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: make system-prometheus")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=120, check=False)


def accepted(*words: str) -> None:
    done = promtool(*words)
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def unit_tests(folder: Path, rules: Path, firing: str = "") -> str:
    """Write the unit tests for a file of rules, or only those in which this alert fires; return where they are."""
    text = yaml.safe_load(UNIT_TESTS.read_text().replace("ALERTS", str(rules)))
    if firing:
        text["tests"] = [test for test in text["tests"] if firing in fired(test)]
    file = folder / "alerts.test.yml"
    file.write_text(yaml.safe_dump(text))
    return str(file)


def fired(test: dict[str, Any]) -> set[str]:
    return {each["alertname"] for each in test["alert_rule_test"] if each["exp_alerts"]}


def panels() -> Iterator[tuple[str, str]]:
    """Yield the title and each query of the dashboard's panels, with Grafana's own variables filled in."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], text.replace("$topic", ".*").replace("$group", ".*")


def queries() -> list[tuple[str, str]]:
    return [(rule["alert"], rule["expr"]) for rule in rules()] + list(panels())


class TestRules:
    def test_promtool_accepts_them(self) -> None:
        accepted("check", "rules", str(RULES))

    def test_each_fires_on_what_it_is_for_and_on_nothing_else(self, tmp_path: Path) -> None:
        accepted("test", "rules", unit_tests(tmp_path, RULES))

    def test_each_is_seen_firing_and_silent(self) -> None:
        tried = [each for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"] for each in test["alert_rule_test"]]
        names = {rule["alert"] for rule in rules()}
        assert {each["alertname"] for each in tried if each["exp_alerts"]} == names
        assert {each["alertname"] for each in tried if not each["exp_alerts"]} == names

    @pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
    def test_one_that_never_fires_is_found(self, rule: dict[str, Any], tmp_path: Path) -> None:
        broken = tmp_path / "alerts.yml"
        all_rules = [
            {**each, "expr": f"({each['expr']}) and vector(0) > 1"} if each == rule else each for each in rules()
        ]
        broken.write_text(yaml.safe_dump({"groups": [{"name": "broken", "rules": all_rules}]}))
        accepted("check", "rules", str(broken))
        assert promtool("test", "rules", unit_tests(tmp_path, broken, rule["alert"])).returncode != 0


class TestDashboard:
    def test_its_queries_are_promql(self, tmp_path: Path) -> None:
        file = tmp_path / "queries.yml"
        recorded = [{"record": f"query:{number}", "expr": text} for number, (_, text) in enumerate(panels())]
        assert len(recorded) > 20
        file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
        accepted("check", "rules", str(file))

    def test_its_panels_do_not_overlap(self) -> None:
        taken: set[tuple[int, int]] = set()
        panels = json.loads(DASHBOARD.read_text())["panels"]
        for panel in panels:
            at = panel["gridPos"]
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert max(x for x, _ in cells) < 24
            assert not taken & cells, panel["title"]
            taken |= cells
        assert len({panel["id"] for panel in panels}) == len(panels)

    def test_every_metric_is_shown(self) -> None:
        text = DASHBOARD.read_text() + RULES.read_text()
        shown = {name.removesuffix("_bucket") for name, _ in SELECTOR.findall(text)}
        families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series()}
        untold = {
            "sqlqueue_heartbeat_age_seconds",
            "sqlqueue_highest_offset",
            "sqlqueue_survey_timestamp_seconds",
            "sqlqueue_topic_partitions",
        }
        elsewhere = {"sqlqueue_topic_paused", "sqlqueue_refused_total"}
        missing = families - shown - untold
        assert missing == elsewhere, f"{sorted(missing - elsewhere)} needs a panel of {DASHBOARD.name}"


@pytest.mark.parametrize(("where", "text"), queries(), ids=[f"{n}-{where}" for n, (where, _) in enumerate(queries())])
def test_what_is_asked_for_is_exported(where: str, text: str) -> None:
    known = series()
    named = SELECTOR.findall(text)
    assert named
    for name, labels in named:
        assert name in known, f"{where}: nothing exports {name}"
        used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", labels))
        assert used <= known[name], f"{where}: {name} has no label {used - known[name]}"
    every = set.intersection(*(known[name] for name, _ in named))
    for grouping in GROUPING.findall(text):
        wanted = {label.strip() for label in grouping.split(",")}
        assert wanted <= every | {"database"}, f"{where}: grouped by {wanted - every}"
