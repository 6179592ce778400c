"""A model of publishing on several writable nodes of Galera, and an explorer of all that can happen in a tiny world.

The cluster gives the changes of all nodes one order; each node applies them in it, sooner or later. A change fails if
one that its node had not applied conflicts with it (certification). Row locks are a node's own: what is applied there
aborts local transactions that hold a lock in its way, unless these have their place in the order already; then they are
applied after it. That is why a change of the named server does not end all publishing on the former one by itself, and
why the new one lets a barrier follow, which conflicts with every message whose node has not applied it (ANALYZE TABLE,
as any statement that Galera carries out in total order isolation).

Publishers publish messages, each one's of one key and one after the other, over any node. One consumer, which may move.
A node may be killed, but not the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

RULES = {
    "named": "a message enters the log only on the server that the gate names",
    "probed": "a consumer's horizon rises only on that server",
    "barrier": "a new server opens the log only after a barrier in the order of all changes",
    "closed": "the log is closed while the barrier is on its way",
    "drained": "no message enters the log directly once others were seen on their way",
    "after": "what takes the detour is due after what is seen there of its key, whatever the node's clock says",
    "causal": "a publisher changes the node only when the new one has applied what it has published before",
}
INTO_LOG, NAMING = ("message", "move"), ("name", "open")
LOOKED, INSERTED, REPLICATED = "looked", "inserted", "replicated"
CLOCKS = (2, 1)  # what a node's clock may say at any moment


class Violation(Exception):
    """A promise is broken."""


class Change(NamedTuple):
    """A change in its place. kind: message, detour, move, name, barrier, open, position."""

    kind: str
    server: int = -1  # by which it was made
    message: int = 0
    offset: int = 0
    due: int = 0  # of a detour


class State(NamedTuple):
    order: tuple[Change, ...] = ()
    applied: tuple[int, ...] = (0, 0)  # by node: how many changes
    alive: tuple[bool, ...] = (True, True)
    open: tuple[tuple[str, int, int, int], ...] = ()  # transactions: (phase, node, message, offset)
    known: tuple[int, ...] = ()  # by message: its place, once its publisher knows that it is committed; else -1
    at: int = 0  # the consumer's node
    highest: int = 0  # what it has read before the probe
    horizon: int = 0
    delivered: tuple[int, ...] = ()
    takeovers: int = 0
    kills: int = 0


class World:
    """publishers: of each message, in their order; skips: whether an offset may be left out, as of what was rolled
    back; takeovers from a living server, kills: at most so many."""

    def __init__(
        self, without: str = "", publishers: str = "aa", skips: bool = False, takeovers: int = 1, kills: int = 1
    ):
        self.without, self.publishers, self.skips = without, publishers, skips
        self.takeovers, self.kills = takeovers, kills

    def start(self) -> State:
        return State(known=(-1,) * len(self.publishers))

    def before(self, message: int) -> int:
        """Return the message that its publisher has published before this one; 0 for none."""
        return self.publishers.rfind(self.publishers[message - 1], 0, message - 1) + 1

    def on(self, rule: str) -> bool:
        return rule != self.without

    # -- what a node knows --------------------------------------------------------------------------------------------

    def seen(self, state: State, node: int) -> tuple[Change, ...]:
        return state.order[: state.applied[node]]

    def log(self, state: State, node: int) -> dict[int, int]:
        """Return the messages of the log by their offsets."""
        return {change.offset: change.message for change in self.seen(state, node) if change.kind in INTO_LOG}

    def waiting(self, state: State, node: int) -> list[int]:
        """Return the messages in the detour, in their order."""
        seen = self.seen(state, node)
        moved = {change.message for change in seen if change.kind == "move"}
        there = [change for change in seen if change.kind == "detour" and change.message not in moved]
        return [change.message for change in sorted(there, key=lambda change: change.due)]

    def due(self, state: State, node: int, message: int, clock: int) -> int:
        """Return when a message that takes the detour is due."""
        waiting = self.waiting(state, node) if self.on("after") else []
        same = [other for other in waiting if self.publishers[other - 1] == self.publishers[message - 1]]
        seen = [change.due for change in self.seen(state, node) if change.kind == "detour" and change.message in same]
        return max([clock, *(due + 1 for due in seen)])

    def named(self, state: State, node: int) -> tuple[int, bool]:
        """Return the named server, as a node knows it, and whether it has opened the log."""
        server, is_open = 0, True
        for change in self.seen(state, node):
            if change.kind == "name":
                server, is_open = change.server, not self.on("closed")
            elif change.kind == "open" and change.server == server:
                is_open = True
        return server, is_open

    def position(self, state: State, node: int) -> int:
        return max((change.offset for change in self.seen(state, node) if change.kind == "position"), default=0)

    # -- changes ------------------------------------------------------------------------------------------------------

    def replicate(self, state: State, node: int, change: Change) -> State | None:
        """Give a change its place; None if it fails. It is applied by its own node in its turn."""
        for other in state.order[state.applied[node] :]:
            if self.conflict(other, change):
                return None
        return state._replace(order=(*state.order, change))

    def conflict(self, earlier: Change, later: Change) -> bool:
        into_log = later.kind in INTO_LOG
        if earlier.kind == "barrier":
            return into_log or later.kind == "position"
        if earlier.kind in INTO_LOG and into_log:
            return earlier.offset == later.offset or earlier.message == later.message
        if earlier.kind in NAMING:
            return later.kind in NAMING
        return earlier.kind == later.kind == "position"

    def apply(self, state: State, node: int) -> State:
        """Let a node apply the next change."""
        place = state.applied[node]
        change = state.order[place]
        applied = tuple(count + (index == node) for index, count in enumerate(state.applied))
        transactions, known = [], state.known
        for one in state.open:
            phase, at, message, _ = one
            if at == node and phase == INSERTED and change.kind in ("name", "open"):
                continue  # aborted: it holds the gate
            if at == node and phase == REPLICATED and change.message == message and change.server == node:
                if change.kind != "move":
                    known = noted(known, message, place)
                continue
            transactions.append(one)
        return state._replace(applied=applied, open=tuple(transactions), known=known)

    # -- steps --------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for node, alive in enumerate(state.alive):
            if not alive:
                continue
            if state.applied[node] < len(state.order):
                yield f"{node} applies {state.order[state.applied[node]]}", self.apply(state, node)
            yield from self.publishing(state, node)
            yield from self.naming(state, node)
            if state.kills < self.kills and all(state.alive):
                yield f"{node} is killed", self.killed(state, node)
        yield from self.consuming(state)

    def publishing(self, state: State, node: int) -> Iterator[tuple[str, State]]:
        server, is_open = self.named(state, node)
        here = not self.on("named") or (server == node and is_open)
        pending = self.waiting(state, node)
        under_way = {one[2] for one in state.open}
        for message, place in enumerate(state.known, 1):
            before = self.before(message)
            if place >= 0 or message in under_way or (before and state.known[before - 1] < 0):
                continue
            there = [place for place, change in enumerate(state.order) if change.message == message]
            if there:  # its node was killed, and its publisher asks another one
                if there[0] < state.applied[node]:
                    yield f"{message} is found", state._replace(known=noted(state.known, message, there[0]))
                continue
            if before and self.on("causal") and state.known[before - 1] >= state.applied[node]:
                continue
            if pending and self.on("drained"):
                yield from self.detour(state, node, message)
            else:
                looked = (*state.open, (LOOKED, node, message, 0))
                yield f"{message} sees no others on their way on {node}", state._replace(open=looked)
        if here and pending and pending[0] not in under_way:
            yield from self.begin(state, node, pending[0])
        for one in state.open:
            phase, at, message, offset = one
            if at == node and phase == LOOKED:
                looked = state._replace(open=tuple(other for other in state.open if other != one))
                yield from self.begin(looked, node, message) if here else self.detour(looked, node, message)
            if at == node and phase == INSERTED:
                change = Change("move" if message in pending else "message", node, message, offset)
                rest = tuple(other for other in state.open if other != one)
                after = self.replicate(state, node, change)
                if after is None:
                    yield f"{message} fails on {node}", state._replace(open=rest)
                else:
                    replicated = (REPLICATED, at, message, offset)
                    yield f"{message} is committed on {node}", after._replace(open=(*rest, replicated))

    def detour(self, state: State, node: int, message: int) -> Iterator[tuple[str, State]]:
        """Commit a message into the detour on a node."""
        for due in dict.fromkeys(self.due(state, node, message, clock) for clock in CLOCKS):
            after = self.replicate(state, node, Change("detour", node, message, due=due))
            if after is not None:
                transaction = (REPLICATED, node, message, 0)
                label = f"{message} into the detour on {node}, due at {due}"
                yield label, after._replace(open=(*state.open, transaction))

    def begin(self, state: State, node: int, message: int) -> Iterator[tuple[str, State]]:
        """Insert a message into the log on a node, not committed yet."""
        highest = max([0, *self.log(state, node), *(one[3] for one in state.open if one[1] == node)])
        for offset in (highest + 1, highest + 2)[: 1 + self.skips]:
            label = f"{message} gets offset {offset} on {node}"
            yield label, state._replace(open=(*state.open, (INSERTED, node, message, offset)))

    def naming(self, state: State, node: int) -> Iterator[tuple[str, State]]:
        server, is_open = self.named(state, node)
        if server != node and (state.takeovers < self.takeovers or not state.alive[server]):
            after = self.replicate(state, node, Change("name", node))
            if after is not None:
                yield f"{node} names itself", after._replace(takeovers=state.takeovers + state.alive[server])
        if server == node and not is_open:
            if self.on("barrier") and not self.barred(state, node, state.applied[node]):
                if not self.barred(state, node, len(state.order)):
                    yield "barrier", state._replace(order=(*state.order, Change("barrier", node)))
            elif not any(change.kind == "open" for change in state.order[state.applied[node] :]):
                after = self.replicate(state, node, Change("open", node))
                if after is not None:
                    yield f"{node} opens the log", after

    def barred(self, state: State, node: int, places: int) -> bool:
        """Tell whether a barrier of this node follows the last naming among so many changes."""
        last = [change for change in state.order[:places] if change.kind in ("name", "barrier")][-1:]
        return last == [Change("barrier", node)]

    def killed(self, state: State, node: int) -> State:
        alive = tuple(each and index != node for index, each in enumerate(state.alive))
        transactions = tuple(one for one in state.open if one[1] != node)
        return state._replace(alive=alive, open=transactions, kills=state.kills + 1)

    def consuming(self, state: State) -> Iterator[tuple[str, State]]:
        node = state.at
        elsewhere = 1 - node
        if state.alive[elsewhere] and (not state.alive[node] or self.named(state, node)[0] != node):
            yield "the consumer moves", state._replace(at=elsewhere, highest=0, horizon=0)
        if not self.on("probed") and state.alive[elsewhere]:
            yield "the consumer strays", state._replace(at=elsewhere, highest=0, horizon=0)
        if not state.alive[node]:
            return
        log = self.log(state, node)
        highest = max(log, default=0)
        if highest > state.highest:
            yield f"reads that the log ends at {highest}", state._replace(highest=highest)
        free = not any(one[1] == node and one[3] for one in state.open)
        here = not self.on("probed") or self.named(state, node) == (node, True)
        if free and here and state.highest > state.horizon:
            yield f"the horizon is {state.highest}", state._replace(horizon=state.highest)
        beyond = [offset for offset in sorted(log) if self.position(state, node) < offset <= state.horizon]
        if beyond and not any(change.kind == "position" for change in state.order[state.applied[node] :]):
            after = self.replicate(state, node, Change("position", node, 0, beyond[0]))
            if after is not None:
                message = log[beyond[0]]
                delivered = state.delivered
                if message not in delivered:
                    delivered = (*delivered, message)
                yield f"{message} is delivered, and settled", after._replace(delivered=delivered)

    # -- promises -----------------------------------------------------------------------------------------------------

    def check(self, state: State) -> None:
        whole = state._replace(applied=(len(state.order),) * 2)
        position = self.position(whole, 0)
        log = self.log(whole, 0)
        passed = [message for offset, message in log.items() if offset <= position and message not in state.delivered]
        if passed:
            raise Violation(f"lost: the position {position} has passed {passed}")
        for publisher in set(self.publishers):
            own = [message for message in state.delivered if self.publishers[message - 1] == publisher]
            if own != sorted(own):
                raise Violation(f"out of order: {own}")
        if len(set(log.values())) != len(log):
            raise Violation("a message is in the log twice")

    def ended(self, state: State) -> None:
        """What must be so where nothing can happen any more: everything that was published is delivered."""
        if min(state.known) < 0 or len(state.delivered) < len(state.known):
            raise Violation(f"stands still: {state.known} are published, {state.delivered} delivered")


def noted(known: tuple[int, ...], message: int, place: int) -> tuple[int, ...]:
    return (*known[: message - 1], place, *known[message:])


class Explored(NamedTuple):
    """states: how many; whole: all that there are; trace: the steps to the violation, one of the shortest ways."""

    states: int
    whole: bool
    violation: str
    trace: list[str]


def explore(world: World, limit: int) -> Explored:
    """Look at every state that can be reached, the nearest ones first, at most so many."""
    first = world.start()
    parents: dict[State, tuple[State, str] | None] = {first: None}
    queue = deque([first])
    state = first
    try:
        while queue and len(parents) < limit:
            state = queue.popleft()
            world.check(state)
            stuck = True
            for label, after in world.steps(state):
                stuck = False
                if after not in parents:
                    parents[after] = state, label
                    queue.append(after)
            if stuck:
                world.ended(state)
    except Violation as violation:
        trace = []
        while (parent := parents[state]) is not None:
            state, label = parent
            trace.append(label)
        return Explored(len(parents), False, str(violation), trace[::-1])
    return Explored(len(parents), not queue, "", [])
