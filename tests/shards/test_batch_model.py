"""A model of how a batch over shards is found finished: every order of the steps that commit, in a small world.

Each shard commits by itself. A member is published, and counted, in a transaction on one shard, and enters the log of
its own at once, or by the relay. What reads whether the batch is finished reads one shard after another. Whatever the
order, it must not find the batch finished while a member is unsettled, and in the end it must.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

SHARDS = (0, 1)


class Member(NamedTuple):
    """A member: the shard whose transaction publishes it, and the one that it is for; the members that its handler adds
    before it is settled; whether its id is taken there, so that it becomes none."""

    source: int
    target: int
    adds: tuple[int, ...] = ()
    taken: bool = False


class State(NamedTuple):
    """What the tables have. where: each member is (new, relayed, in the log, settled, or taken); counted: how many were
    published on each shard for each shard; settled: on each shard; named: the shards that the first one knows to have
    counts. Of the one that looks: the shards that it asks, what it reads next, and what it has seen."""

    where: tuple[str, ...]
    counted: tuple[tuple[int, ...], ...]
    settled: tuple[int, ...]
    named: frozenset[int]
    asks: frozenset[int] = frozenset()
    step: int = 0
    seen_settled: int = 0
    seen_added: int = 0
    seen_shards: frozenset[int] = frozenset()


class World(NamedTuple):
    """The members, those that are published at first (before the batch is sealed), and the rules."""

    members: tuple[Member, ...]
    first: tuple[int, ...]
    settled_first: bool = True  # what is settled is read before what was added
    counts_taken: bool = True  # what turns out to be no member is taken out where it arrives
    by_source: bool = True  # counted in the transaction that publishes, not where it arrives
    names: bool = True  # a shard is named before it has counts
    asks_again: bool = True  # shards that were not known when it began to look are not passed over

    def start(self) -> State:
        nothing = (0,) * len(SHARDS)
        state = State(("new",) * len(self.members), (nothing, nothing), nothing, frozenset({0}))
        for number in self.first:
            state = self.publish(state, number)
        return state

    def publish(self, state: State, number: int) -> State:
        """Commit the transaction that publishes a member; before, its shard has been named if that is needed."""
        one = self.members[number]
        relayed = one.source != one.target
        here = state.counted
        if self.by_source or not relayed:
            here = _plus(here, one.source, one.target, 0 if one.taken and not relayed else 1)
        named = state.named | {one.source} if self.names else state.named
        where = "relayed" if relayed else "taken" if one.taken else "log"
        return state._replace(where=_set(state.where, number, where), counted=here, named=named)

    def next(self, state: State) -> Iterator[State]:
        for number, one in enumerate(self.members):
            if state.where[number] == "relayed":
                arrived = _set(state.where, number, "taken" if one.taken else "log")
                counted = state.counted
                if not self.by_source and not one.taken:
                    counted = _plus(counted, one.target, one.target, 1)
                if self.by_source and one.taken and self.counts_taken:
                    counted = _plus(counted, one.target, one.target, -1)
                yield state._replace(where=arrived, counted=counted)
            if state.where[number] == "log":
                waiting = [each for each in one.adds if state.where[each] == "new"]
                if waiting:  # its handler runs
                    yield self.publish(state, waiting[0])
                else:
                    settled = _add(state.settled, one.target)
                    yield state._replace(where=_set(state.where, number, "settled"), settled=settled)
        if state.step < 2 * len(SHARDS) + 1:
            yield self.look(state)

    def look(self, state: State) -> State:
        """Read the next thing: which shards there are; what is settled on each; what was added on each."""
        if state.step == 0:
            return state._replace(step=1, asks=self.known(state))
        order = [*(("settled", shard) for shard in SHARDS), *(("added", shard) for shard in SHARDS)]
        if not self.settled_first:
            order = order[len(SHARDS) :] + order[: len(SHARDS)]
        what, shard = order[state.step - 1]
        state = state._replace(step=state.step + 1)
        if shard not in state.asks:
            return state
        if what == "settled":
            return state._replace(seen_settled=state.seen_settled + state.settled[shard])
        counts = state.counted[shard]
        found = frozenset(target for target in SHARDS if counts[target]) | (state.named if shard == 0 else frozenset())
        added = state.seen_added + sum(counts)
        return state._replace(seen_added=added, seen_shards=state.seen_shards | found)

    def known(self, state: State) -> frozenset[int]:
        """Return the shards that are named, and those to which what is counted there goes."""
        found = state.named
        return found | {target for shard in found for target in SHARDS if state.counted[shard][target]}

    def finds_finished(self, state: State) -> bool:
        unknown = state.seen_shards - state.asks if self.asks_again else frozenset()
        return state.step > 2 * len(SHARDS) and not unknown and state.seen_settled >= state.seen_added

    def is_finished(self, state: State) -> bool:
        return all(where in ("settled", "taken", "new") for where in state.where)


def _set(values: tuple[str, ...], index: int, value: str) -> tuple[str, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _add(values: tuple[int, ...], index: int, count: int = 1) -> tuple[int, ...]:
    return (*values[:index], values[index] + count, *values[index + 1 :])


def _plus(counted: tuple[tuple[int, ...], ...], source: int, target: int, count: int) -> tuple[tuple[int, ...], ...]:
    return (*counted[:source], _add(counted[source], target, count), *counted[source + 1 :])


def explore(world: World) -> tuple[int, bool, bool]:
    """Return how many states there are, whether in one a batch is found finished that is not, and whether in each last
    state, of which all steps are done, a look would find it finished."""
    first = world.start()
    seen, new = {first}, [first]
    wrong, ends = False, True
    while new:
        state = new.pop()
        wrong = wrong or (world.finds_finished(state) and not world.is_finished(state))
        following = list(world.next(state))
        if not following:
            again = state._replace(asks=frozenset(), step=0, seen_settled=0, seen_added=0, seen_shards=frozenset())
            while again.step < 2 * len(SHARDS) + 1:
                again = world.look(again)
            ends = ends and world.finds_finished(again)
        for one in following:
            if one not in seen:
                seen.add(one)
                new.append(one)
    return len(seen), wrong, ends


WORLDS = {
    "direct": World((Member(0, 0, (1,)), Member(1, 1, (2,)), Member(1, 1)), (0,)),
    "relayed": World((Member(0, 1), Member(0, 0), Member(0, 1, (3, 4)), Member(1, 0), Member(1, 1)), (0, 1, 2)),
    "added to and fro": World((Member(0, 1, (1,)), Member(1, 0, (2, 3)), Member(0, 1), Member(0, 0)), (0,)),
    "taken": World((Member(0, 1, taken=True), Member(0, 1, (2,)), Member(1, 0, taken=True)), (0, 1)),
}


@pytest.mark.once
@pytest.mark.parametrize("name", WORLDS)
def test_a_batch_is_found_finished_when_it_is_and_not_before(name: str) -> None:
    states, wrong, ends = explore(WORLDS[name])
    assert (states > 20, wrong, ends) == (True, False, True)


# Each rule that is left out, and a world in which that is found: the batch ends too early, or never.
NEEDED = {
    "settled_first": ("direct", "early"),
    "counts_taken": ("taken", "never"),
    "by_source": ("relayed", "early"),
    "names": ("direct", "early"),
    "asks_again": ("direct", "early"),
}


@pytest.mark.once
@pytest.mark.parametrize("rule", NEEDED)
def test_each_rule_is_needed(rule: str) -> None:
    name, how = NEEDED[rule]
    _, wrong, ends = explore(WORLDS[name]._replace(**{rule: False}))
    assert {"early": wrong, "never": not ends}[how]
