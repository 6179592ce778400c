"""A model of how publishers and groups go over to a new epoch, and an explorer of every order of its steps.

One key, a stream for each of two epochs, one group; publishers of a few transactions of one or two statements each, in
small steps (gate, slot or generation, insert, commit); two rows of the gate, one slot of the key. Each of RULES can be
left out: then the explorer finds a message that is lost, out of order or behind the end of its epoch.
"""

from __future__ import annotations

import random
from collections import deque, namedtuple
from typing import Any

VISIBLE, OPEN = "V", "O"


class Violation(Exception):
    """A promise is broken."""


def need(truth: Any, text: str, *values: Any) -> None:
    if not truth:
        raise Violation(text % values)


def explore(world: Epochs, limit: int, drain_every: int = 0) -> tuple[int, bool, Violation | None]:
    """Walk through all states, breadth first, up to so many; return how many, whether that was all, and what broke."""
    first = world.start()
    seen, queue = {first}, deque([first])
    while queue and len(seen) < limit:
        state = queue.popleft()
        try:
            for _, after in world.steps(state):
                if after in seen:
                    continue
                seen.add(after)
                world.check(after)
                queue.append(after)
                if drain_every and hash(after) % drain_every == 0:
                    world.drain(after)
        except Violation as violation:
            return len(seen), False, violation
    return len(seen), not queue, None


def walk(world: Epochs, walks: int, seed: int = 1, depth: int = 120) -> Violation | None:
    """Take so many random walks, each to its end; return what broke."""
    dice = random.Random(seed)
    for _ in range(walks):
        state = world.start()
        try:
            for _ in range(depth):
                choices = list(world.steps(state))
                if not choices:
                    break
                _, state = dice.choice(choices)
                world.check(state)
            world.drain(state)
        except Violation as violation:
            return violation
    return None


RULES = {
    "by_key": "MySQL: who may publish where turns by a slot of the key, in a round of its own between two gate rounds",
    "hold": "MySQL: the slot (or the gate's generation) stays share-locked until the transaction ends",
    "announce": "MySQL: no slot turns before every gate row says that slots are to be asked",
    "lock_first": "PostgreSQL: the shared lock is taken before the epoch is read",
    "fresh": "PostgreSQL: the epoch is read by a current read, not from the transaction's snapshot",
    "grace": "PostgreSQL: the end is read after all who held the lock at the change have ended",
    "end_after": "the old epoch's end is read once no publisher can add to it any more",
    "behind": "a group starts the new epoch only when its watermark of the old one has reached the end",
    "reset_revokes": "a reset below an old epoch's end revokes the leases of later epochs",
    "check": "a publish statement checks its epoch",
}
# publisher: (mode, known generation, snapshot generation, messages of the open transaction, statement under way, left)
# log: ((id, epoch, status, ids committed before its statement began)); offset = place in the log
State = namedtuple("State", "log pubs gates slot row holders end P own done resets")
IDLE = (0, 0, (), None)


class Epochs:
    def __init__(self, flavour, without=(), publishers=2, statements=2, messages=3, resets=1, snapshots=True):
        self.flavour, self.on = flavour, (set(RULES) - set(without)).__contains__
        self.n, self.statements, self.messages, self.snapshots = publishers, statements, messages, snapshots
        self.resets = resets

    def start(self):
        pubs = ((0, None, frozenset(), None, self.statements),) * self.n  # known, snapshot, locks, statement, left
        return State((), pubs, (0, 0), 0, 0, None, None, (0, 0), False, 0, self.resets)

    def committed(self, s):
        return frozenset(i for i, m in enumerate(s.log) if m[1] == VISIBLE)

    def steps(self, s):
        for i, pub in enumerate(s.pubs):
            for label, new, changes in self.publisher(s, i, *pub):
                yield "{}: {}".format("XYZ"[i], label), s._replace(pubs=(*s.pubs[:i], new, *s.pubs[i + 1 :]), **changes)
        yield from getattr(self, "alter_" + ("postgresql" if self.flavour == "postgresql" else "mysql"))(s)
        yield from self.consumer(s)

    # A transaction: begin (snapshot), statements, end. A statement: locks and check in small steps, then the insert.
    def publisher(self, s, i, known, snapshot, locks, statement, left):
        if snapshot is None:
            if left and len(s.log) < self.messages:
                yield "begin", (known, s.row, locks, None, left), {}
            return
        mine = [n for n, m in enumerate(s.log) if m[1] == OPEN and m[2] == i]
        if statement is None:
            if left and len(s.log) < self.messages:
                yield "statement begins", (known, snapshot, locks, ("begun", self.committed(s)), left - 1), {}
            log = tuple((m[0], VISIBLE, *m[2:]) if n in mine else m for n, m in enumerate(s.log))
            yield "commit", (known, None, frozenset(), None, left), {"log": log}
            return
        if self.flavour == "postgresql":
            yield from self.postgresql(s, i, known, snapshot, locks, statement, left, mine)
        else:
            yield from self.mysql(s, i, known, snapshot, locks, statement, left, mine)

    def insert(self, s, i, known, snapshot, locks, before, left, epoch):
        log = (
            *s.log,
            (epoch, OPEN, i, before | frozenset(n for n, m in enumerate(s.log) if m[1] == OPEN and m[2] == i)),
        )
        return f"insert {len(s.log)} in epoch {epoch}", (known, snapshot, locks, None, left), {"log": log}

    def mysql(self, s, i, known, snapshot, locks, statement, left, mine):
        step, before = statement[:2]
        if step == "begun":  # the time's slot of the gate, share-locked until the end; its generation is read with it
            for g in (0, 1):
                if self.on("check") and s.gates[g] != known:
                    yield f"learns generation {s.gates[g]}", (s.gates[g], snapshot, locks, statement, left), {}
                    continue
                held = locks | {g} if self.on("hold") else locks
                if known == 1 and self.on("by_key"):
                    yield f"holds gate {g}", (known, snapshot, held, ("slot", before), left), {}
                else:
                    epoch = 1 if known == 2 else 0
                    yield f"holds gate {g}", (known, snapshot, held, ("insert", before, epoch), left), {}
        elif step == "slot":  # the key's slot: current, share-locked until the end
            epoch = s.slot
            held = locks | {"slot"} if self.on("hold") else locks
            yield f"slot says {epoch}", (known, snapshot, held, ("insert", before, epoch), left), {}
        else:
            yield self.insert(s, i, known, snapshot, locks, before, left, statement[2])

    def alter_mysql(self, s):
        held = frozenset().union(*(p[2] for p in s.pubs))
        last = 2
        for g in (0, 1):  # SKIP LOCKED: only a free row is turned
            if g in held:
                continue
            if s.gates[g] == 0:
                to = 1 if self.on("by_key") else 2
                yield f"alter: gate {g} at {to}", s._replace(gates=(*s.gates[:g], to, *s.gates[g + 1 :]))
            elif s.gates[g] == 1 and s.slot == 1:
                yield f"alter: gate {g} at 2", s._replace(gates=(*s.gates[:g], last, *s.gates[g + 1 :]))
        announced = min(s.gates) >= 1 or (not self.on("announce") and max(s.gates) >= 1)
        if self.on("by_key") and s.slot == 0 and announced and "slot" not in held:
            yield "alter: slot turned", s._replace(slot=1)
        ready = s.slot == 1 if self.on("by_key") else min(s.gates) == 2
        if s.end is None and (ready or (not self.on("end_after") and max(s.gates) >= 1)):
            yield self.fix_end(s)

    def fix_end(self, s):
        end = max((n + 1 for n, m in enumerate(s.log) if m[1] == VISIBLE), default=0)
        return f"alter: the old epoch ends at {end}", s._replace(end=end)

    def postgresql(self, s, i, known, snapshot, locks, statement, left, mine):
        step, before = statement[:2]
        seen = s.row if self.on("fresh") or not self.snapshots else snapshot
        if step == "begun" and self.on("lock_first"):
            yield "holds the lock", (known, snapshot, locks | {"lock"}, ("read", before), left), {}
        elif step == "begun":
            yield f"reads epoch {seen}", (known, snapshot, locks, ("lock", before, seen), left), {}
        elif step == "read":
            yield f"reads epoch {seen}", (known, snapshot, locks, ("insert", before, seen), left), {}
        elif step == "lock":
            yield "holds the lock", (known, snapshot, locks | {"lock"}, ("insert", before, statement[2]), left), {}
        else:
            yield self.insert(s, i, known, snapshot, locks, before, left, statement[2])

    def alter_postgresql(self, s):
        now = frozenset(i for i, p in enumerate(s.pubs) if "lock" in p[2])
        if s.row == 0:
            yield "alter: epoch 1 begins", s._replace(row=1)
        elif s.holders is None:
            yield f"alter: holders {sorted(now)}", s._replace(holders=now)
        elif s.end is None:
            rest = s.holders & now  # (one that ended and holds it anew counts too: waits longer than it must)
            if rest != s.holders:
                yield f"alter: still waits for {sorted(rest)}", s._replace(holders=rest)
            if not rest or not self.on("grace"):
                yield self.fix_end(s)

    def horizon(self, s):
        return next((n for n, m in enumerate(s.log) if m[1] == OPEN), len(s.log))

    def watermark(self, s, epoch):
        """Everything of the epoch up to here is settled; moves up to the horizon."""
        owed = [n for n, m in enumerate(s.log) if m[0] == epoch and m[1] == VISIBLE and not s.done >> n & 1]
        return min([s.P[epoch], *owed])

    def consumer(self, s):
        h = self.horizon(s)
        for e in (0, 1):
            if e == 1 and not s.own:
                continue
            owed = [n for n, m in enumerate(s.log) if m[0] == e and m[1] == VISIBLE and not s.done >> n & 1]
            for n in owed[:1]:
                if n >= s.P[e]:
                    for x in s.log[n][3]:
                        if s.log[x][1] == VISIBLE and s.log[x][2] != -1:
                            need(
                                s.done >> x & 1,
                                "message %d (epoch %d) starts before message %d (epoch %d)",
                                n,
                                e,
                                x,
                                s.log[x][0],
                            )
                    yield f"group handles {n} (epoch {e})", s._replace(done=s.done | 1 << n)
            to = min([h, *[n for n in owed if n >= s.P[e]]])
            if to > s.P[e]:
                yield f"P of epoch {e} = {to}", s._replace(P=(to, s.P[1]) if e == 0 else (s.P[0], to))
        started = s.row == 1 or max(s.gates) > 0
        if not s.own and started and (not self.on("behind") or (s.end is not None and self.watermark(s, 0) >= s.end)):
            yield "group starts epoch 1", s._replace(own=True)
        if s.resets and s.done:
            own = s.own and not self.on("reset_revokes")
            yield "group is reset to 0", s._replace(P=(0, 0), done=0, own=own, resets=s.resets - 1)

    def check(self, s):
        for n, m in enumerate(s.log):
            if m[1] == VISIBLE and not s.done >> n & 1:
                need(n >= s.P[m[0]], "message %d of epoch %d is LOST", n, m[0])
            if m[0] == 0 and s.end is not None and m[1] in (OPEN, VISIBLE):
                need(n < s.end, "message %d comes into the closed epoch behind its end %d", n, s.end)

    def drain(self, s):
        """No further transactions: the change ends, and the group has everything."""
        for _ in range(300):
            for label, after in self.steps(s):
                if after != s and not label.endswith((": begin", ": statement begins", "is reset to 0")):
                    self.check(after)
                    s = after
                    break
            else:
                break
        rest = [n for n, m in enumerate(s.log) if m[1] == VISIBLE and not s.done >> n & 1]
        whole = s.end is not None and s.own and not rest and min(s.P) == len(s.log)
        need(whole, "STUCK: %s", s)
