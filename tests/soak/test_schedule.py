"""The schedule of faults is its seed's, holds every kind, and keeps to its time."""

from itertools import pairwise

import pytest

from tests.soak.schedule import ALTERATIONS, FILE, INFRASTRUCTURE, OF_PROCESSES, QUIET, SERVER, Fault, schedule

HOUR = 3600.0
DATABASES = sorted(INFRASTRUCTURE)


def kinds_of(track: list[Fault]) -> set[str]:
    return {fault.kind for fault in track}


@pytest.mark.parametrize("database", DATABASES)
def test_the_same_seed_gives_the_same_faults(database: str) -> None:
    once, again = (schedule(7, 300, database) for _ in range(2))
    assert once == again
    assert all(once)


@pytest.mark.parametrize("database", DATABASES)
def test_another_seed_gives_other_faults(database: str) -> None:
    one, another = (schedule(seed, 300, database) for seed in (7, 8))
    for mine, other in zip(one, another):
        assert not {fault.at for fault in mine} & {fault.at for fault in other}


def test_the_tracks_have_dice_of_their_own() -> None:
    processes, infrastructure, alterations = schedule(7, 300, "mariadb")
    picks = [{fault.pick for fault in track} for track in (processes, infrastructure, alterations)]
    assert len(set.union(*picks)) == sum(map(len, picks))


def test_servers_of_all_vendors_meet_the_same_faults() -> None:
    assert schedule(7, 300, "mariadb") == schedule(7, 300, "mysql") == schedule(7, 300, "postgresql")
    assert schedule(7, 300, "mariadb") != schedule(7, 300, "sqlite")


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    for short, long in zip(schedule(7, 300, "mariadb"), schedule(7, 600, "mariadb")):
        assert long[: len(short)] == short


@pytest.mark.parametrize("database", DATABASES)
def test_every_kind_comes_in_its_track(database: str) -> None:
    processes, infrastructure, alterations = schedule(1, 3 * HOUR, database)
    assert kinds_of(processes) == {kind.name for kind in OF_PROCESSES[database]}
    assert kinds_of(infrastructure) == {kind.name for kind in INFRASTRUCTURE[database]}
    assert kinds_of(alterations) == {kind.name for kind in ALTERATIONS}


@pytest.mark.parametrize("database", DATABASES)
def test_the_faults_of_a_track_follow_one_another_and_end_in_time(database: str) -> None:
    for seconds in (10, 60, HOUR):
        for track in schedule(1, seconds, database):
            assert all(fault.at >= QUIET for fault in track)
            # Times are rounded to milliseconds.
            assert all(fault.at + fault.seconds <= seconds + 0.002 for fault in track)
            assert all(one.at + one.seconds <= next_.at + 0.002 for one, next_ in pairwise(track))


def test_faults_are_as_long_as_their_kind_says_and_choose_their_victims_evenly() -> None:
    lengths = {kind.name: (kind.least, kind.most) for kind in (*OF_PROCESSES["mariadb"], *SERVER, *FILE, *ALTERATIONS)}
    faults = [fault for track in schedule(1, 3 * HOUR, "mariadb") for fault in track]
    for fault in faults:
        least, most = lengths[fault.kind]
        assert least <= fault.seconds <= most
        assert 0 <= fault.pick < 1
    picks = [fault.pick for fault in faults]
    assert 0.45 < sum(picks) / len(picks) < 0.55


def test_the_heavier_kinds_come_more_often() -> None:
    processes, _, _ = schedule(1, 3 * HOUR, "mariadb")
    counts = {kind.name: sum(fault.kind == kind.name for fault in processes) for kind in OF_PROCESSES["mariadb"]}
    assert counts["kill-consumer"] > counts["kill-publisher"] > counts["kill-supervisor"] > 0


def test_only_what_is_wanted_comes() -> None:
    processes, infrastructure, alterations = schedule(1, HOUR, "mariadb", only=["kill-consumer", "read-only"])
    assert kinds_of(processes) == {"kill-consumer"}
    assert kinds_of(infrastructure) == {"read-only"}
    assert not alterations


def test_a_track_of_which_nothing_is_wanted_is_empty() -> None:
    processes, infrastructure, alterations = schedule(1, HOUR, "mariadb", only=["join"])
    assert kinds_of(processes) == {"join"}
    assert not infrastructure
    assert not alterations


def test_a_run_that_is_too_short_has_no_faults() -> None:
    assert schedule(1, QUIET, "mariadb") == [[], [], []]
