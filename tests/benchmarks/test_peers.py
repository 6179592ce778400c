"""The comparison with peers measures what it says: on SQLite with few messages, and its arithmetic by hand."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.benchmarks.peers import charts, report
from tests.benchmarks.peers.figures import MEASURES, ahead, percentile, summary
from tests.benchmarks.peers.handling import read_notes
from tests.benchmarks.peers.measuring import Peer
from tests.benchmarks.peers.servers import Servers

pytestmark = pytest.mark.once

ROUNDS = {
    "sqlqueue": [{"enqueue": 100.0, "latency, idle": [1.0, 2.0]}, {"enqueue": 300.0, "latency, idle": [3.0, 4.0]}],
    "celery": [{"enqueue": 250.0, "latency, idle": [1.0]}, {"enqueue": 350.0, "latency, idle": [1.5]}],
}
RUN = {
    "date": "2026-01-01",
    "minutes": 1.0,
    "load before": 0.1,
    "rounds done": 2,
    "machine": {"CPUs": "2"},
    "servers": {"Redis": "7"},
    "peers": {name: {"version": "1", "setup": "as it comes"} for name in ROUNDS},
    "rounds": ROUNDS,
    "kills": {"celery": {"messages": 440, "kills at work": 10, "lost": 7, "done twice": 0, "finished after": 1.0}},
    "failed": {"rq": "it has not come"},
}


def test_sqlqueue_is_measured_and_killed() -> None:
    with Servers(["sqlqueue-sqlite"]) as servers:
        peer = Peer("sqlqueue-sqlite", servers, most=50, seconds=0.1)
        try:
            with peer.working() as worker:
                assert peer.backlog(worker, "noop", 30)["rate"] > 0
                peer.rates = {"noop": 1_000.0, "enqueue": 1_000.0}
                assert len(peer.loaded_latency(worker)["latency, half load"]) == 100
                handled = len(read_notes(peer.notes))
                worker.hold()
                sent = peer.send("single", "noop", count=5)
                assert (sent["count"], len(read_notes(peer.notes))) == (5, handled)  # it stands still
                assert worker.memory() > 1
                worker.kill()
                assert not worker.runs
            numbers = [note.number for note in read_notes(peer.notes)]
            assert sorted(numbers) == list(range(handled))
        finally:
            peer.close()


def test_percentiles_are_samples() -> None:
    assert [percentile([3, 1, 2, 4], percent) for percent in (1, 50, 75, 99, 100)] == [1, 2, 3, 4, 4]
    assert percentile(range(1, 101), 99) == 99


def test_rounds_become_medians_and_samples_percentiles_of_all() -> None:
    found = summary(ROUNDS["sqlqueue"])
    assert found == {"enqueue": 200.0, "latency, idle p50": 2.0, "latency, idle p99": 4.0}
    assert summary([{"statements, idle": None}]) == {"statements, idle": None}


def test_a_peer_that_is_ahead_is_named() -> None:
    medians = report.medians_of(RUN)
    enqueue = next(measure for measure in MEASURES if measure.key == "enqueue")
    assert ahead(enqueue, medians) == ("sqlqueue", ["celery"])
    assert ahead(enqueue, {**medians, "celery": {"enqueue": 5.0}}) == ("sqlqueue", [])
    said = list(report.where_peers_are_ahead(medians))
    assert said[0] == "Enqueue, one at a time: celery (300); sqlqueue, PostgreSQL has 200."


def test_losses_win_nothing() -> None:
    kills = {"sqlqueue": (0, 20), "sqlqueue-mariadb": (0, 25), "django-ox": (0, 1), "huey": (8, 0)}
    found = {name: {"lost": lost, "done twice": twice} for name, (lost, twice) in kills.items()}
    (said,) = report.where_peers_do_less_twice(found)
    assert said.endswith("of those that lost none: django-ox (1); sqlqueue, PostgreSQL has 20.")
    assert not list(report.where_peers_do_less_twice({"huey": found["huey"]}))


def test_a_run_is_written_into_the_documentation(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.publish(RUN, tmp_path)
    first = page.read_text()
    assert first.startswith(f"before\n{report.BEGIN}\n")
    assert first.endswith(f"{report.END}\nafter\n")
    assert "| celery | 300 |" not in first  # the chart has it
    assert ">300<" in (tmp_path / "images" / "peers-enqueue.svg").read_text()
    assert "| celery | 10 | 7 | 0 | 1 |" in first
    assert "rq: it has not come" in first
    assert "old" not in first
    report.publish(RUN, tmp_path)
    assert page.read_text() == first
    assert json.loads((tmp_path / "benchmarks.json").read_text())["medians"]["celery"]["enqueue"] == 300
    for file in (tmp_path / "images").iterdir():
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    page.write_text("no place")
    with pytest.raises(ValueError, match="no place for the figures"):
        report.publish(RUN, tmp_path)


def test_a_chart_draws_the_best_first_and_to_scale() -> None:
    drawn = charts.drawn("Enqueue", [MEASURES[0]], report.medians_of(RUN))
    bars = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
    assert [(bar.get("class"), float(bar.get("width"))) for bar in bars] == [
        ("peer", charts.WIDTH),
        ("own", round(charts.WIDTH * 200 / 300, 1)),
    ]


def test_the_documentation_has_the_place_for_the_figures() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text()
    assert page.index(report.BEGIN) < page.index(report.END)
