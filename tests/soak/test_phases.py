"""The phases of a run are its seed's, follow one another, and each has code that carries it out."""

from itertools import pairwise

import pytest

from tests.processes import ROOT
from tests.soak import acts, databases, phases
from tests.soak.workload import ALL_READERS, DEAD_LETTERS, PHASE_READERS, PHASE_TOPICS

HOUR = 3600.0


def test_the_same_seed_gives_the_same_phases() -> None:
    assert phases.plan(7, 300, phases.NAMES) == phases.plan(7, 300, phases.NAMES) != phases.plan(8, 300, phases.NAMES)


def test_every_phase_comes_and_each_waits_for_the_one_before() -> None:
    planned = phases.plan(1, HOUR, phases.NAMES)
    assert {phase.kind for phase in planned} == set(phases.NAMES)
    assert all(one.at + one.seconds <= next_.at + 0.002 for one, next_ in pairwise(planned))


def test_only_those_that_are_wanted_come() -> None:
    assert {phase.kind for phase in phases.plan(1, HOUR, ["burst", "idle"])} == {"burst", "idle"}
    assert not phases.plan(1, HOUR, ())


@pytest.mark.parametrize("name", phases.NAMES)
def test_a_run_of_a_minute_has_room_for_each(name: str) -> None:
    assert phases.plan(1, 60, [name])


def test_all_none_and_names_can_be_chosen() -> None:
    assert phases.chosen("all") == phases.NAMES
    assert phases.chosen("none") == ()
    assert phases.chosen("idle,burst") == ("idle", "burst")
    with pytest.raises(ValueError, match="no phase is called bursts"):
        phases.chosen("bursts,idle")


def test_each_phase_is_carried_out_by_a_process_or_by_the_harness() -> None:
    for name in phases.NAMES:
        carried_out_by = acts.Actor if name in phases.OF_A_PROCESS else phases.Phases
        method = name.replace("-", "_") if name in phases.OF_A_PROCESS else f"_{name.replace('-', '_')}"
        assert callable(getattr(carried_out_by, method))
    assert set(acts.ACTS) == phases.OF_A_PROCESS


def test_a_server_is_started_as_its_phases_need_it_and_no_other() -> None:
    assert databases.words(databases.MYSQL_WORDS, ()) == ()
    assert databases.words(databases.MYSQL_WORDS, ("language",)) == ("--lc-messages=de_DE",)
    both = databases.words(databases.MYSQL_WORDS, ("heavy", "errors"))
    assert both == (databases.MYSQL_WORDS["heavy"],)


def test_the_documentation_names_every_phase() -> None:
    text = (ROOT / "docs/guarantees.md").read_text()
    assert [name for name in phases.NAMES if f"| `{name}` |" not in text] == []


def test_the_phases_topics_are_known_by_their_partitions() -> None:
    assert {reader.topic for reader in PHASE_READERS} == {*PHASE_TOPICS, DEAD_LETTERS}
    assert len({(reader.topic, reader.group) for reader in ALL_READERS}) == len(ALL_READERS)
