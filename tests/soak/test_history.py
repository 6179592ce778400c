"""What processes write down is read as they wrote it, and put together for the process that did it."""

import json
import os
from pathlib import Path

import pytest

from tests.soak.history import Journal, Line, read
from tests.soak.job_records import Ask, Enqueued
from tests.soak.records import NEVER, Reader, Record

PID = 4711


def lines_of(*processes: list[list[object]]) -> list[Line]:
    """The lines of several processes: each a kind, a moment, and its facts."""
    return [
        Line(str(kind), float(str(at)), facts, writer)
        for writer, written in enumerate(processes)
        for kind, at, *facts in written
    ]


def record_of(*processes: list[list[object]]) -> Record:
    return Reader().read(lines_of(*processes))


def test_lines_come_back_in_their_order_and_with_their_moment(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "consumer")
    journal.note("begin", "orders", 1)
    journal.note_all("end", [("orders", 1, "ok"), ("orders", 2, "\N{SNOWMAN}\n")])
    introduction, begin, *ends = read(tmp_path)
    assert (introduction.kind, introduction.facts) == ("process", [os.getpid(), "consumer"])
    assert (begin.kind, begin.facts) == ("begin", ["orders", 1])
    assert [(end.kind, end.facts) for end in ends] == [
        ("end", ["orders", 1, "ok"]),
        ("end", ["orders", 2, "\N{SNOWMAN}\n"]),
    ]
    assert introduction.at <= begin.at <= ends[0].at == ends[1].at, "several lines of a call have one moment"


def test_processes_with_one_id_have_files_of_their_own(tmp_path: Path) -> None:
    for name in ("first", "second"):
        Journal(tmp_path, "consumer").note("name", name)
    written = list(read(tmp_path))
    assert [line.facts[0] for line in written if line.kind == "process"] == [os.getpid()] * 2
    assert len({line.writer for line in written}) == 2
    assert [(line.writer, line.facts) for line in written if line.kind == "name"] == [(0, ["first"]), (1, ["second"])]


def test_the_end_that_a_killed_process_did_not_finish_is_left_out(tmp_path: Path) -> None:
    whole = json.dumps(["begin", 1.5, "orders"])
    (tmp_path / "consumer-1-1.jsonl").write_text(f"{whole}\n{whole[:9]}")
    (tmp_path / "consumer-2-2.jsonl").write_text(f"{whole}\n{whole}")  # all but its end: not known to be whole
    assert list(read(tmp_path)) == [Line("begin", 1.5, ["orders"], writer) for writer in (0, 1)]


def test_a_torn_line_before_the_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "consumer-1-1.jsonl").write_text('["begin",1.5]\n["beg["end",1.6]\n["end",1.7]\n')
    with pytest.raises(ValueError, match=r"consumer-1-1\.jsonl, line 2"):
        list(read(tmp_path))


def test_transactions_are_told_taken_back_or_in_doubt() -> None:
    record = record_of(
        [
            ["publish", 1, 1, [["orders", "k", "a"], ["bulk", "k", "b"]]],
            ["doubt", 2, 1, "OperationalError()"],
            ["told", 3, 1],
            ["publish", 4, 2, [["orders", "k", "c"]]],
            ["back", 5, 2],
            ["publish", 6, 3, [["orders", "k", "d"]]],
            ["doubt", 7, 3, "OperationalError()"],
        ],
        [["publish", 1, 1, [["orders", "k", "e"]]], ["told", 9, 1]],  # another's transaction of the same number
    )
    told = [(each.publisher, each.began, each.told, each.back) for each in record.transactions]
    assert told == [(0, 1, 3, False), (0, 4, None, True), (0, 6, None, False), (1, 1, 9, False)]
    assert record.transactions[0].messages == [("orders", "k", "a"), ("bulk", "k", "b")]
    assert record.messages == 3


def test_a_handling_ends_with_its_own_end() -> None:
    begin, end = ["orders", "ship", 3, 10], ["orders", "ship", 10]
    record = record_of(
        [
            ["begin", 1, *begin, "a", 1],
            ["begin", 5, *begin, "a", 2],
            ["end", 6, *end, 2, "ok"],
            ["end", 7, *end, 1, "fail"],
        ],
        [["begin", 2, *begin, "a", 1], ["died", 3, "orders", "ship", 10]],
    )
    assert [(each.process, each.attempt, each.ended, each.outcome) for each in record.handlings] == [
        (0, 1, 7, "fail"),
        (1, 1, None, ""),
        (0, 2, 6, "ok"),
    ]
    assert [each.until for each in record.handlings] == [7, 2, 6]
    (fault,) = record.faults
    assert (fault.kind, fault.began, fault.ended, fault.victims) == ("handler-dies", 3, 3, {1})


def test_one_attempt_that_runs_twice_at_once_is_two_handlings() -> None:
    begin, end = ["orders", "ship", 3, 10, "a", 1], ["orders", "ship", 10, 1, "ok"]
    record = record_of([["begin", 1, *begin], ["begin", 2, *begin], ["end", 3, *end], ["end", 4, *end]])
    assert [(each.began, each.ended) for each in record.handlings] == [(1, 3), (2, 4)]


def test_what_consumers_announce_is_kept() -> None:
    record = record_of(
        [
            ["acquired", 2, "orders", "ship", [1, 4], "someone"],
            ["settled", 3, "orders", "ship", 10, 1, "acked"],
            ["dead", 4, "orders", "ship", 11, 4],
            ["dead", 9, "orders", "ship", 11, 4],
            ["collected", 5, "orders", 30],
            ["lost", 6, "orders", "ship", 1, "someone"],  # not needed
        ],
        [["collected", 5, "bulk", 12], ["acquired", 1, "orders", "ship", [4], "another"]],
    )
    assert record.acquired == [(1, 1, "orders", "ship", 4), (2, 0, "orders", "ship", 1), (2, 0, "orders", "ship", 4)]
    assert record.settled == [(3, 0, "orders", "ship", 10, 1, "acked")]
    assert record.dead_lettered == {("orders", "ship", 11): 4}
    assert record.collected == 42


def test_a_fault_is_of_the_process_that_had_the_id_then() -> None:
    harness: list[list[object]] = [
        ["process", 0.5, 1, "harness"],
        ["fault", 9, "kill-consumer", 8.9, [PID]],
        ["fault", 30, "stop-consumer", 20, [PID, PID + 1]],
        ["fault", 50, "kill-supervisor", 49, [PID + 2]],
        ["fault", 60, "kill-server", 55, "everybody"],
    ]
    first, second, another = ([["process", at, pid, "consumer"]] for at, pid in ((1, PID), (15, PID), (2, PID + 1)))
    record = record_of(harness, first, second, another)
    victims = {fault.kind: fault.victims for fault in record.faults}
    assert victims["kill-consumer"] == {1}
    assert victims["stop-consumer"] == {2, 3}
    assert victims["kill-supervisor"] == {-1}, "a process that keeps no journal is none of those that do"
    assert victims["kill-server"] is None
    everybody = next(fault for fault in record.faults if fault.kind == "kill-server")
    assert everybody.touches(1)
    assert everybody.began == 55
    assert everybody.ended == 60 < NEVER


def test_of_two_runs_of_one_attempt_each_has_its_own_end() -> None:
    record = record_of(
        [
            ["begin", 1, "orders", "notify", 4, 10, "m", 1, 7001],
            ["blocks", 2, 45.0],
            ["begin", 8, "orders", "notify", 4, 10, "m", 1, 7002],
            ["end", 9, "orders", "notify", 10, 1, "ok", 7002],
            ["end", 50, "orders", "notify", 10, 1, "ok", 7001],
        ]
    )
    assert [(handling.began, handling.ended) for handling in record.handlings] == [(1, 50), (8, 9)]
    assert record.blocked == [(2, 47, 0)]


def test_everyday_jobs_are_put_together_from_what_was_told_of_them() -> None:
    jobs = record_of(
        [
            ["offer", 1.0, 1, "n", "schedule", 0.5],
            ["offered", 1.1, 1, "created"],
            ["offer", 2.0, 2, "n", "cancel", 0.5],
            ["offer-back", 2.1, 2],
            ["offer", 3.0, 3, "n", "cancel", 0.5],
            ["task", 4.0, 1, "id", "add", 7],
            ["task-told", 4.1, 1],
            ["task", 5.0, 2, "other", "fail", 8],
            ["task-back", 5.1, 2],
        ],
        [["value", 6.0, "n", 1], ["value", 6.1, "n", 1]],
        [["ticks-paused", 9.0, 7.5]],
    ).jobs
    told, back, doubt = jobs.offers
    assert (told.told, told.began, told.ended, told.in_doubt) == ("created", 1.0, 1.1, False)
    assert (back.back, back.in_doubt, back.may_remove) == (True, False, False)
    assert (doubt.ended, doubt.in_doubt, doubt.may_remove) == (NEVER, True, True)
    assert jobs.enqueued == [Enqueued("id", "add", 7, told=True), Enqueued("other", "fail", 8, back=True)]
    assert jobs.values == {"n": {1}}
    assert jobs.pauses == [(7.5, 9.0)]


def test_calls_and_what_groups_were_given_are_put_together() -> None:
    record = record_of(
        [
            ["ask", 1.0, 1, "r1", 3.0],
            ["answer", 1.5, 1, "reply", {"id": "r1"}],
            ["ask", 2.0, 2, "r2", 0.5],
            ["sockets", 3.0, 0],
            ["left", 3.1, "jobs1"],
        ],
        [["filtered", 1.0, "requests", "deputy", 3], ["filtered", 2.0, "requests", "deputy", 2]],
    )
    assert record.jobs.asks == [Ask("r1", 0, 3.0, 1.0, 1.5, "reply", {"id": "r1"}), Ask("r2", 0, 0.5, 2.0)]
    assert record.left == {0}
    assert record.jobs.sockets == [0]
    assert record.jobs.filtered == {("requests", "deputy"): 5}
