"""A model of how keys go over to another server while publishers and groups run, and what an explorer (epochs_model)
walks through.

The former servers are A and B, the later one is C. Each server turns by itself, as `--partitions` lets it: the slot of
a key is closed there once nobody holds it (PostgreSQL: at once), then its end is read. C keeps no slots: who has seen
on a key's former server that it is closed there, which is final, may publish on C. So nothing waits for another server
but the groups, and a publisher needs nobody.

A group starts C's partitions by a grant of each former server: given under the lock of the topic there, where the
group has settled all up to the end. A group that is to be reset below an end, and has a grant, is revoked on C first.
Each of RULES can be left out: then the explorer finds what breaks.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from tests.protocol.epochs_model import OPEN, VISIBLE, need

RULES = {
    "seen_closed": "a publisher goes to the later server only when it has seen the key closed on the former one",
    "own_server": "for that, it asks the key's own former server alone",
    "every_server": "a group starts the later server's partitions only with a grant of every former one",
    "behind": "a server grants it only once its end is known, and the group has settled all up to it",
    "granted": "a reset looks whether there is a grant",
    "revoke_first": "a reset revokes the group on the later server before its watermark falls",
    "numbered": "a reset goes on only if the revocation is still its own",
    "verified": "what is granted counts only if nothing was revoked on the later server since before it was asked for",
    "look_back": "a publish with an id looks for it on the former server first",
    "final": "and only once nobody who published there is left (PostgreSQL)",
}
FORMER, LATER = ("A", "B"), "C"
OF = {"k": "A", "j": "B"}  # the former server of a key
GRANTED = 0  # other numbers: a grant that is being revoked

# log: (server, key, status, publisher, those committed before its statement began); an offset is a place in the log
# publisher: (servers it knows to be closed, the server of its open transaction, statement, statements left)
# statement: (stage, key, before)
# turned, left, ends, grants: of A and B; left: who held the gate when it turned (PostgreSQL)
# start: (revocations when it began, who has granted it); resets: (server, stage, number, whether it falls) of a process
World = namedtuple("World", "log pubs turned left ends P done own revoked grants start resets falls numbers")


class Reshard:
    def __init__(
        self, flavour, without=(), publishers=2, statements=1, messages=2, keys="kj", falls=1, ids=False, ended=False
    ):
        self.on, self.postgresql = (set(RULES) - set(without)).__contains__, flavour == "postgresql"
        self.n, self.statements, self.messages = publishers, statements, messages
        self.keys, self.falls, self.ids = keys, falls, ids
        self.ended = ended  # it begins when the publishers have gone over, with a message on A and a later one on C

    def start(self):
        pubs = ((frozenset(), None, None, self.statements),) * self.n
        none, log, turned, left, ends = (None, None), (), (False, False), (None, None), (None, None)
        if self.ended:
            log = (("A", "k", VISIBLE, 0, frozenset()), (LATER, "k", VISIBLE, 0, frozenset({0})))
            turned, left, ends = (True, True), (frozenset(), frozenset()), (1, 0)
        return World(log, pubs, turned, left, ends, (0, 0, 0), 0, False, 0, none, None, none, self.falls, 1)

    def steps(self, s: Any):
        for i, pub in enumerate(s.pubs):
            for label, new, changes in self.publisher(s, i, *pub):
                yield "{}: {}".format("XYZ"[i], label), s._replace(pubs=(*s.pubs[:i], new, *s.pubs[i + 1 :]), **changes)
        yield from self.alter(s)
        yield from self.group(s)
        yield from self.starter(s)
        yield from self.reset(s)

    # -- publishers -----------------------------------------------------------------------------------------------

    def publisher(self, s, i, known, transaction, statement, left):
        if statement is None:
            if left and len(s.log) < self.messages:
                for key in self.keys:
                    before = frozenset(n for n, m in enumerate(s.log) if m[1] == key and m[2] == VISIBLE)
                    before |= frozenset(n for n, m in enumerate(s.log) if m[1] == key and m[3] == i)
                    yield f"begins with {key}", (known, transaction, ("begun", key, before), left - 1), {}
            if transaction is not None:
                log = tuple((*m[:2], VISIBLE, *m[3:]) if m[2:4] == (OPEN, i) else m for m in s.log)
                yield "commits", (known, None, None, left), {"log": log}
            return
        stage, key, before = statement
        former = OF[key]
        if stage in ("held", "sure"):
            yield from self.insert(s, i, former if stage == "held" else LATER, known, key, before, left)
            return
        asked = {former} if self.on("own_server") else set(FORMER)
        for server in FORMER:
            if server in asked - known:
                yield from self.at_former(s, i, server, known, transaction, statement, left)
        if asked <= known or not self.on("seen_closed"):
            yield from self.at_later(s, i, known, transaction, statement, left)

    def at_former(self, s, i, server, known, transaction, statement, left):
        stage, key, before = statement
        closed = s.turned[FORMER.index(server)]
        if server != OF[key]:  # only looks
            if closed:
                yield f"sees {server} closed", (known | {server}, transaction, statement, left), {}
        elif transaction not in (None, server):
            yield "is refused: its transaction is elsewhere", (known, transaction, None, left), {}
        elif stage == "begun" and self.postgresql:  # and then reads the generation
            yield f"holds the gate of {server}", (known, server, ("locked", key, before), left), {}
        elif closed:
            mine = any(m[0] == server and m[2:4] == (OPEN, i) for m in s.log)
            after = (known | {server}, server if mine else None, ("begun", key, before), left)
            yield f"sees {key} closed on {server}", after, {}
        else:
            yield f"holds {key} on {server}", (known, server, ("held", key, before), left), {}

    def at_later(self, s, i, known, transaction, statement, left):
        key, before = statement[1:]
        if transaction not in (None, LATER):
            yield "is refused: its transaction is elsewhere", (known, transaction, None, left), {}
            return
        if self.ids and self.on("look_back"):
            if self.postgresql and self.on("final") and s.ends[FORMER.index(OF[key])] is None:
                return  # those who have published there have to end first
            if any(m[:3] == (OF[key], key, VISIBLE) for m in s.log):
                yield "finds its id", (known, transaction, None, left), {}
                return
        yield f"is sure of {LATER}", (known, LATER, ("sure", key, before), left), {}

    def insert(self, s, i, server, known, key, before, left):
        there = [m for m in s.log if m[:2] == (server, key)] if self.ids else []
        if any(m[2] == OPEN and m[3] != i for m in there):
            return  # waits for who inserts the same id
        if there:
            yield "finds its id", (known, server, None, left), {}
            return
        log = (*s.log, (server, key, OPEN, i, before))
        yield f"inserts {len(s.log)} ({key} on {server})", (known, server, None, left), {"log": log}

    # -- who alters: each server by itself, any process, one step at a time ---------------------------------------

    def alter(self, s):
        for x, server in enumerate(FORMER):
            holders = frozenset(i for i, pub in enumerate(s.pubs) if pub[1] == server)
            if not s.turned[x]:
                if self.postgresql or not holders:
                    changed = s._replace(turned=put(s.turned, x, True), left=put(s.left, x, holders))
                    yield f"alter: {server} is closed", changed
            elif s.left[x] & holders != s.left[x]:
                yield f"alter: some have ended on {server}", s._replace(left=put(s.left, x, s.left[x] & holders))
            elif s.ends[x] is None and not s.left[x]:
                there = (n + 1 for n, m in enumerate(s.log) if m[0] == server and m[2] == VISIBLE)
                yield f"alter: the end of {server}", s._replace(ends=put(s.ends, x, max(there, default=0)))

    # -- the group --------------------------------------------------------------------------------------------------

    def owed(self, s, server):
        return [n for n, m in enumerate(s.log) if m[0] == server and m[2] == VISIBLE and not s.done >> n & 1]

    def settled(self, s, x):
        """Whether a former server may grant the start: its end is known, and the watermark has reached it."""
        if not self.on("behind"):
            return s.turned[x]
        return s.ends[x] is not None and min([s.P[x], *self.owed(s, FORMER[x])]) >= s.ends[x]

    def group(self, s):
        for x, server in enumerate((*FORMER, LATER)):
            if server == LATER and not s.own:
                continue
            owed = [n for n in self.owed(s, server) if n >= s.P[x]]
            for n in owed[:1]:
                for m in s.log[n][4]:
                    if s.log[m][2] == VISIBLE:
                        need(s.done >> m & 1, "message %d on %s starts before %d on %s", n, server, m, s.log[m][0])
                yield f"group handles {n} on {server}", s._replace(done=s.done | 1 << n)
            opened = [n for n, m in enumerate(s.log) if m[0] == server and m[2] == OPEN]
            to = min([len(s.log), *opened[:1], *owed[:1]])
            if to > s.P[x]:
                yield f"P on {server} = {to}", s._replace(P=put(s.P, x, to))

    def starter(self, s):
        if s.own:
            return
        if s.start is None:
            yield "start: asks", s._replace(start=(s.revoked, frozenset()))
            return
        since, granted = s.start
        for x, server in enumerate(FORMER):
            if server not in granted and s.grants[x] in (None, GRANTED) and self.settled(s, x):
                got = s._replace(start=(since, granted | {server}), grants=put(s.grants, x, GRANTED))
                yield f"start: {server} grants it", got
        if len(granted) == len(FORMER) or (granted and not self.on("every_server")):
            good = since == s.revoked or not self.on("verified")
            yield f"start: {'begins' if good else 'is revoked'}", s._replace(start=None, own=good)

    # -- a reset to the beginning, on a former server: by either of two processes, each of which may die ----------

    def reset(self, s):
        for p, process in enumerate(s.resets):
            if process is None:
                for x, server in enumerate(FORMER):
                    yield from self.reset_begins(s, p, x, server)
                continue
            x, stage, number, falls = process
            name = f"reset {p} on {FORMER[x]}"
            if number <= self.falls:  # the last ones live
                yield f"{name}: dies", s._replace(resets=put(s.resets, p, None))
            if stage == "revoke":
                after = (x, "fall", number, falls) if self.on("revoke_first") else None
                yield f"{name}: revokes", s._replace(own=False, revoked=s.revoked + 1, resets=put(s.resets, p, after))
            elif s.grants[x] == number or (not self.on("numbered") and s.grants[x]):
                after = self.fall(s, x) if falls else s
                next_ = None if self.on("revoke_first") else (x, "revoke", number, falls)
                yield (
                    f"{name}: the watermark falls",
                    after._replace(grants=put(s.grants, x, None), resets=put(s.resets, p, next_)),
                )
            else:
                yield f"{name}: gives up", s._replace(resets=put(s.resets, p, None))

    def reset_begins(self, s, p, x, server):
        here = any(s.done >> n & 1 and m[0] == server for n, m in enumerate(s.log))
        falls = bool(s.falls and here)
        if falls and (s.grants[x] is None or not self.on("granted")):
            yield f"reset {p} on {server}: falls at once", self.fall(s, x)._replace(falls=s.falls - 1)
        elif (falls and s.grants[x] is not None) or s.grants[x]:  # or another has died on the way: ends that
            stage = "revoke" if self.on("revoke_first") else "fall"
            begun = (x, stage, s.numbers, falls)
            if s.numbers <= self.falls + 2:
                yield (
                    f"reset {p} on {server}: begins",
                    s._replace(
                        grants=put(s.grants, x, s.numbers),
                        resets=put(s.resets, p, begun),
                        numbers=s.numbers + 1,
                        falls=s.falls - falls,
                    ),
                )

    def fall(self, s, x):
        there = sum(1 << n for n, m in enumerate(s.log) if m[0] == FORMER[x])
        return s._replace(P=put(s.P, x, 0), done=s.done & ~there)

    # -- what has to be true ----------------------------------------------------------------------------------------

    def check(self, s):
        for n, (server, key, status, *_) in enumerate(s.log):
            if status == VISIBLE and not s.done >> n & 1:
                need(n >= s.P[(*FORMER, LATER).index(server)], "message %d on %s is LOST", n, server)
            if server != LATER and s.ends[FORMER.index(server)] is not None:
                need(n < s.ends[FORMER.index(server)], "message %d comes to %s behind its end", n, server)
            if self.ids and status == VISIBLE:
                need(sum(m[1:3] == (key, VISIBLE) for m in s.log) == 1, "an id is there twice: %d", n)

    def drain(self, s):
        """No further transactions: publishers end without anybody's help (with ids, PostgreSQL: once those before have
        ended), then the change, and the group has everything."""
        if not (self.ids and self.postgresql):
            alone = self.run(s, lambda label: label[0] in "XYZ" and "begins with" not in label)
            need(all(pub[2] is None for pub in alone.pubs), "a publisher is STUCK: %s", alone.pubs)
        s = self.run(
            s, lambda label: "begins with" not in label and "falls at once" not in label and "dies" not in label
        )
        rest = [n for n, m in enumerate(s.log) if m[2] != VISIBLE or not s.done >> n & 1]
        need(s.own and None not in s.ends and not rest and min(s.P) == len(s.log), "STUCK: %s", s)

    def run(self, s, wanted):
        for _ in range(300):
            after = next((after for label, after in self.steps(s) if wanted(label) and after != s), None)
            if after is None:
                return s
            self.check(after)
            s = after
        return s


def put(values, place, value):
    return (*values[:place], value, *values[place + 1 :])
