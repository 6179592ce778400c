"""Orphans: what no other takes is taken beyond the share, kept without flapping, and given up once its owner lives."""

import pytest

from sqlqueue.core.assignment import LONGEST, Orphans

pytestmark = pytest.mark.once

TIMEOUT = 30.0
US = {"a", "idle"}


def swept() -> Orphans:
    """`a` has 0, 1, 2 of its own, and has just taken 3, 4, 5, of which no other subscriber has anything."""
    orphans = Orphans(TIMEOUT)
    free = {3: 1, 4: 1, 5: 1}
    assert orphans.find(free, 0.0) == []
    assert orphans.find(free, TIMEOUT - 0.1) == []
    assert orphans.find(free, TIMEOUT) == [3, 4, 5]
    orphans.take([3, 4, 5], US, TIMEOUT)
    return orphans


def test_what_changes_its_owner_meanwhile_is_no_orphan() -> None:
    orphans = Orphans(TIMEOUT)
    orphans.find({3: 1, 4: 1}, 0.0)
    orphans.find({4: 1}, 10.0)  # 3 was taken
    assert orphans.find({3: 2, 4: 2}, TIMEOUT) == []  # and 4, between two looks
    assert orphans.find({3: 2, 4: 2}, 2 * TIMEOUT) == [3, 4]


def test_the_excess_is_kept_while_only_those_are_there_who_did_not_take_it() -> None:
    orphans = swept()
    for now in (31.0, 45.0, 59.0):
        orphans.find({}, now)
        assert orphans.spare([5, 4, 3], range(6), US, now) == []
        assert orphans.spare([5, 4, 3], range(6), {"a"}, now) == []


def test_it_is_given_up_at_once_when_somebody_new_comes() -> None:
    orphans = swept()
    orphans.find({}, 31.0)
    assert orphans.spare([5, 4, 3], range(6), US | {"new"}, 31.0) == [5, 4, 3]
    assert orphans.spare([5], range(4), US, 32.0) == [5]


def test_a_trial_gives_up_one_and_the_rest_follows_once_that_is_taken() -> None:
    orphans = swept()
    orphans.find({}, 60.0)
    assert orphans.spare([5, 4, 3], range(6), US, 60.0) == [5]
    assert orphans.spare([5, 4, 3], range(6), US, 61.0) == [5]  # not drained yet
    orphans.find({5: 2}, 62.0)
    assert orphans.spare([4, 3], range(5), US, 62.0) == []
    orphans.find({}, 63.0)
    assert orphans.spare([4, 3], range(5), US, 63.0) == [4, 3]


def test_trials_that_fail_become_rare() -> None:
    orphans, now, trials = swept(), TIMEOUT, []
    for _ in range(10):
        began = now
        while orphans.spare([5, 4, 3], range(6), US, now) != [5]:
            now += 1.0
            orphans.find({}, now)
        trials.append(now - began)
        assert orphans.find({5: 2}, now) == []
        now += TIMEOUT
        assert orphans.find({5: 2}, now) == [5]
        assert orphans.spare([4, 3], range(5), US, now) == []
        orphans.take([5], US, now)
    assert trials[:4] == [TIMEOUT, 2 * TIMEOUT, 4 * TIMEOUT, 8 * TIMEOUT]
    assert max(trials) == LONGEST * TIMEOUT


def test_one_that_cannot_be_taken_does_not_put_the_trial_off() -> None:
    orphans = swept()
    for now in range(31, 60):
        assert orphans.find({9: 1}, now) == ([9] if now >= 31 + TIMEOUT else [])
        orphans.take([9], US, now)
    orphans.find({9: 1}, 60.0)
    assert orphans.spare([5, 4, 3], range(6), US, 60.0) == [5]


def test_a_trial_that_came_back_by_itself_does_not_end_all_trials() -> None:
    orphans = swept()
    assert orphans.spare([5, 4, 3], range(6), US, 60.0) == [5]
    assert orphans.spare([], range(6), US, 61.0) == []  # the share has grown
    assert orphans.spare([5, 4, 3], range(6), US, 62.0) == [5]
