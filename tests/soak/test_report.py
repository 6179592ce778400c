"""The figures of a run are those of its history; a standstill is one that no fault explains."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.soak import report
from tests.soak.checker import VIOLATIONS, Checker
from tests.soak.progress import longest_gap
from tests.soak.records import DeadLetter, Fault, Handling, Record, Transaction
from tests.soak.soak import Plan, Result, work_seconds
from tests.soak.standstill import longest_standstill
from tests.soak.watch import Sample
from tests.soak.workload import LABOR, LEASE_DURATION, TOO_LONG

LONG = LEASE_DURATION + 4


def handling(began: float, outcome: str = "ok", offset: int = 1) -> Handling:
    return Handling("deadly", "brave", 0, offset, f"m{offset}", 1, 1, began, began, outcome)


def fault(kind: str, began: float, ended: float) -> Fault:
    return Fault(kind, began, ended, None)


def result(folder: Path, record: Record, **facts: Any) -> Result:
    defaults: dict[str, Any] = {
        "samples": [],
        "done": {},
        "impossible": {},
        "drained_after": 1.26,
        "backlog": 5,
        "standstill": 0.04,
        "clients_left": 0,
        "seconds": 61.2,
    }
    return Result(Plan("sqlite", 60.0, 7, 30.0, 240.0), folder, record, Checker(record).check(), **(defaults | facts))


@pytest.mark.parametrize(
    ("faults", "free"),
    [
        ([], 10),
        ([(0, 10)], 0),
        ([(-5, 20)], 0),
        ([(3, 4)], 6),
        ([(-5, 4)], 6),
        ([(8, 20)], 8),
        ([(2, 3), (7, 8)], 4),
        ([(1, 9), (2, 3)], 1),  # one within another
        ([(2, 5), (4, 8)], 2),
        ([(8, 9), (1, 3)], 5),  # in no order
        ([(-5, -1), (11, 12)], 10),
    ],
)
def test_the_longest_part_outside_of_faults(faults: list[tuple[float, float]], free: float) -> None:
    assert longest_gap(0, 10, faults) == free


def test_a_run_that_never_rests_has_no_standstill() -> None:
    record = Record(handlings=[handling(float(at)) for at in range(60)])
    assert longest_standstill(record, 0, 60) == 0


def test_after_a_fault_of_a_node_leases_may_have_to_end() -> None:
    record = Record(handlings=[handling(0.0), handling(LONG)], faults=[fault("kill-primary", 0.5, 1.0)])
    assert longest_standstill(record, 0, LONG) == LONG - 1
    assert longest_standstill(record, 0, LONG, {"kill-primary"}) == 0.5


def test_pauses_shorter_than_a_lease_are_no_standstill() -> None:
    record = Record(handlings=[handling(0.0), handling(LEASE_DURATION), handling(2 * LEASE_DURATION)])
    assert longest_standstill(record, 0, 2 * LEASE_DURATION) == 0


def test_a_pause_without_a_fault_is_a_standstill() -> None:
    record = Record(handlings=[handling(5.0), handling(5 + LONG)])
    assert longest_standstill(record, 0, 6 + LONG) == LONG


def test_the_time_before_the_first_handler_does_not_count_but_that_up_to_the_end_does() -> None:
    record = Record(handlings=[handling(5 + LONG)])
    assert longest_standstill(record, 0, 6 + LONG) == 0
    assert longest_standstill(record, 0, 5 + 2 * LONG) == LONG


def test_a_run_in_which_nothing_ever_began_stands_still() -> None:
    assert longest_standstill(Record(), 3, 3 + LONG) == LONG


def test_faults_of_everybody_explain_a_pause() -> None:
    record = Record(handlings=[handling(0.0), handling(LONG)], faults=[fault("kill-server", 1, LONG - 1)])
    assert longest_standstill(record, 0, LONG) == 1


def test_faults_of_one_process_do_not_explain_that_no_process_goes_on() -> None:
    faults = [fault(kind, LONG / 2, LONG / 2) for kind in ("join", "shift-clock", "kill-consumer", "kill-publisher")]
    record = Record(handlings=[handling(0.0), handling(LONG)], faults=faults)
    assert longest_standstill(record, 0, LONG) == LONG


def test_what_is_left_may_take_as_long_as_at_the_rate_before_the_drain() -> None:
    before = [handling(10 + number / 10) for number in range(100)]  # ten seconds, 10 a second
    drain = [handling(30.0) for _ in range(1000)]
    assert work_seconds(Record(handlings=before + drain), backlog=50, seconds=10) == 2 * TOO_LONG + 10
    assert work_seconds(Record(), backlog=5, seconds=10) == 2 * TOO_LONG + 10


def test_long_jobs_of_a_partition_may_run_one_after_the_other() -> None:
    """As they do in a process with one thread. What ran before the drain does not count."""
    began = enumerate((12.0, 17.0, 23.0, 23.0, 29.0))
    jobs = [Handling(LABOR, "grind", each % 2, each, f"j{each}", 1, 1, at, at + 6, "ok") for each, at in began]
    record = Record(handlings=[handling(10.0), *jobs])
    assert work_seconds(record, backlog=0, seconds=10) == 2 * TOO_LONG + 12


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    record = Record(
        transactions=[
            Transaction(100, 1.0, [("deadly", "k", "m1"), ("deadly", "k", "m2")], 1.1),
            Transaction(100, 2.0, [("deadly", "k", "m3")], None, back=True),
        ],
        handlings=[handling(3.0), handling(4.0, "reject", offset=2), handling(5.0)],
        settled=[(3.1, 1, "deadly", "brave", 1, 1, "acked"), (4.1, 1, "deadly", "brave", 2, 1, "dead")],
        acquired=[(0.0, 1, "deadly", "brave", 0)],
        faults=[Fault("handler-dies", 6.0, 6.0, frozenset([1]))],
        dead=[DeadLetter("deadly", "brave", 2, "m2", 1)],
        collected=2,
    )
    done = {"kill-consumer": 3, "kill-publisher": 2, "kill-supervisor": 1, "kill-server": 4, "restart-server": 5}
    figures = report.figures(result(tmp_path, record, done=done, troubles=["something"]))
    expected = {
        "database": "sqlite",
        "seed": 7,
        "seconds": 61,
        "messages committed": 2,
        "messages taken back or in doubt": 1,
        "deliveries": 3,
        "deliveries by ordering": {"key": 3},
        "out of order by ordering": {"key": 0, "partition": 0},
        "acks confirmed": 1,
        "messages collected": 2,
        "dead letters": 1,
        "duplicates": 1,
        "duplicates explained by": {"nothing": 1},
        "faults": done | {"handler-dies": 1},
        "kill -9": 11,
        "server deaths": 9,
        "drained after (s)": 1.3,
        "deliveries left at the last fault": 5,
        "longest unexplained standstill (s)": 0.0,
        "troubles": ["something"],
    }
    assert {name: figures[name] for name in expected} == expected
    wrong = {"delivered after the ack": 1, "unexplained duplicates": 1, "attempts wrong": 1}
    assert figures["violations"] == dict.fromkeys(VIOLATIONS, 0) | wrong


def test_a_run_passes_without_violations_and_troubles_only(tmp_path: Path) -> None:
    lost = Record(transactions=[Transaction(100, 1.0, [("deadly", "k", "m1")], 1.1)])
    assert result(tmp_path, Record()).passed
    assert not result(tmp_path, Record(), troubles=["not drained"]).passed
    assert not result(tmp_path, lost).passed


def test_figures_are_kept_beside_the_history(tmp_path: Path) -> None:
    one = result(tmp_path, Record(), drained_after=None)
    report.save(one)
    kept = json.loads((tmp_path / "report.json").read_text())
    assert kept == report.figures(one) | {"lease": LEASE_DURATION}
    assert kept["drained after (s)"] is None


def samples(memories: list[float]) -> list[Sample]:
    return [Sample(float(at), round(mb * 1e6), 7, 20 + at, at % 5) for at, mb in enumerate(memories)]


def test_memory_is_compared_between_the_second_fifth_and_the_last() -> None:
    figures = report.memory(samples([10.0] * 4 + [50.0] * 4 + [60.0] * 8 + [70.0, 71.0, 72.0, 500.0]))
    assert figures["witness: MB, early and late"] == [50, 72]
    assert figures["witness: threads, early and late"] == [7, 7]
    assert figures["witness: files, early and late"] == [26, 38]
    assert figures["connections of all processes, at most"] == 4


def test_a_few_samples_tell_nothing_of_memory() -> None:
    assert report.memory(samples([10.0] * 9)) == {}
