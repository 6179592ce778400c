"""The history as the checker reads it: what was published, what was handled, and what was done to whom."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlqueue.core.keys import Epoch
from tests.soak.history import Line
from tests.soak.job_records import NEVER, Ask, Enqueued, Jobs, Offer
from tests.soak.places import ALIASES, offset_at, partition_at

EVERYBODY = "everybody"


@dataclass
class Transaction:
    """What a publisher was told of one transaction."""

    publisher: int
    began: float
    messages: list[tuple[str, str, str]]  # topic, key, id
    told: float | None = None
    back: bool = False
    ended: float | None = None  # with whatever answer
    doubted: bool = False  # an attempt had no answer
    relayed_by: str = ""  # the database that it was committed on, from which others' messages had to be moved


@dataclass
class Handling:
    """One run of a handler for one message."""

    topic: str
    group: str
    partition: int
    offset: int
    id: str
    attempt: int
    process: int
    began: float
    ended: float | None = None
    outcome: str = ""  # "" as long as it has not ended

    @property
    def succeeded(self) -> bool:
        return self.outcome == "ok"

    @property
    def until(self) -> float:
        """When it ended; if it never did, when it began."""
        return self.ended if self.ended is not None else self.began


@dataclass
class Fault:
    """Something that was done to processes (the writers of their history) or to everybody (None). database: it was done
    to a database, and so to all who served it."""

    kind: str
    began: float
    ended: float
    victims: frozenset[int] | None
    database: str = ""

    def touches(self, process: int) -> bool:
        return self.victims is None or process in self.victims


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter as the tables have it at the end."""

    topic: str
    group: str
    offset: int
    id: str
    failures: int
    error: str = ""
    at: float = NEVER
    """When it was dead-lettered, by the database's clock."""


@dataclass(frozen=True)
class Phase:
    """A phase that was carried out: its name, its number in the run, and when."""

    kind: str
    number: int
    began: float
    ended: float


@dataclass(frozen=True)
class Change:
    """A change of a topic's partitions: the epoch that it leads to, and when it was under way, since nothing was done
    to the process that made it."""

    topic: str
    epoch: int
    base: int
    """The first of its partition numbers."""
    partitions: int
    began: float
    ended: float | None
    """None: it was never seen to end."""


@dataclass(frozen=True)
class Failover:
    """Another server has taken the primary's place: what the former one held and this one does not (topic, id), and
    what was still to be delivered by this one's tables (topic, group, id), before any client was let in."""

    died: float  # from here on the former one answered no client
    opened: float  # from here on clients reached the new one
    forgotten: frozenset[tuple[str, str]]
    pending: frozenset[tuple[str, str, str]]


@dataclass
class Record:
    """Everything that happened in a run. What stands in the final tables is filled in by the code that reads them."""

    transactions: list[Transaction] = field(default_factory=list)
    handlings: list[Handling] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    settled: list[tuple[float, int, str, str, int, int, str]] = field(default_factory=list)
    """When, by which process, topic, group, offset, attempt, outcome."""
    acquired: list[tuple[float, int, str, str, int]] = field(default_factory=list)
    """When, by which process, topic, group, partition."""
    released: list[tuple[float, int, str, str, int]] = field(default_factory=list)
    """The same, of partitions that a process has given up in order."""
    dead_lettered: dict[tuple[str, str, int], float] = field(default_factory=dict)
    """When a consumer announced a dead letter: topic, group, offset."""
    collected: int = 0
    dead: list[DeadLetter] = field(default_factory=list)
    entries: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often atomic handlers have left their effect: (group, id)."""
    drained: bool = True
    """Everything has been settled."""
    pending: set[tuple[str, str, str]] = field(default_factory=set)
    """What the tables still have to be delivered: topic, group, id. What else has not been delivered is lost."""
    leftovers: dict[str, int] = field(default_factory=dict)
    """Rows that should not be there after the drain, by table."""
    removed: set[tuple[str, str, str]] = field(default_factory=set)
    """Dead letters that a person discarded or had delivered again: topic, group, id."""
    dead_letters: list[tuple[str, str]] = field(default_factory=list)
    """What the dead-letter topics that are consumed hold at the end: topic, id."""
    wrong: list[tuple[float, str]] = field(default_factory=list)
    """When a publisher was refused, or told what is not so."""
    complaints: list[tuple[float, int, str, str]] = field(default_factory=list)
    """When, in which process, which background task failed, and how the database's fault was classified ("": none)."""
    blocked: list[tuple[float, float, int]] = field(default_factory=list)
    """From when to when a handler blocked the event loop of which process."""
    left: set[int] = field(default_factory=set)
    """The processes that have ended in order."""
    phases: list[Phase] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    """Those of a topology whose servers are promoted, in their order."""
    changes: list[Change] = field(default_factory=list)
    epochs: dict[str, tuple[Epoch, ...]] = field(default_factory=dict)
    """Of the topics whose partitions were changed, or may have been: all that they have had, on all databases."""
    databases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """In a run with databases: those that the keys of a topic are spread over."""
    placed: dict[tuple[str, str], int] = field(default_factory=dict)
    """The partitions of messages that the log still has: topic, id."""
    unfinished: str = ""
    """The change that was still under way at the end."""
    jobs: Jobs = field(default_factory=Jobs)
    crowded: float = 1.0
    """How many times as long as on a machine of its own anything may take."""
    since: float = -NEVER
    """When consumers were started."""
    until: float = 0.0
    """Up to when consumers could deliver; 0 if that is not known: then nothing is said of progress."""

    @property
    def messages(self) -> int:
        """How many messages publishers were told are committed."""
        return sum(len(each.messages) for each in self.transactions if each.told is not None)


class Reader:
    """Puts lines, each process's in their order, together to a Record."""

    def __init__(self) -> None:
        self.record = Record()
        self._transactions: dict[tuple[int, int], Transaction] = {}
        self._faults: list[tuple[str, float, float, list[int] | str]] = []
        self._databases: dict[int, str] = defaultdict(str)  # which one a consumer process serves
        self._processes: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self._offers: dict[tuple[int, int], Offer] = {}
        self._tasks: dict[tuple[int, int], Enqueued] = {}
        self._asks: dict[tuple[int, int], Ask] = {}
        self._running: dict[tuple[int, str, str, int, int, int], list[Handling]] = defaultdict(list)

    def read(self, lines: Iterable[Line]) -> Record:
        """Read all lines; those of kinds that the checker does not need are left out."""
        for line in lines:
            take = getattr(self, f"_{line.kind.replace('-', '_')}", None)
            if take is not None:
                take(line, *line.facts)
        for kind, began, ended, whom in self._faults:
            victims = None if whom == EVERYBODY else frozenset(self._victims(whom, ended))
            database = whom if isinstance(whom, str) and whom in ALIASES else ""
            self.record.faults.append(Fault(kind, began, ended, victims, database))
        self.record.handlings.sort(key=lambda handling: handling.began)
        self.record.faults.sort(key=lambda fault: fault.began)
        self.record.acquired.sort()
        self.record.settled.sort()
        return self.record

    def _writer(self, pid: int, at: float) -> int:
        """Return which process had an id at a moment."""
        return max(((began, writer) for began, writer in self._processes[pid] if began <= at), default=(0.0, -1))[1]

    def _victims(self, whom: list[int] | str, at: float) -> Iterator[int]:
        if isinstance(whom, str):
            yield from (writer for writer, database in self._databases.items() if database == whom)
        else:
            yield from (self._writer(pid, at) for pid in whom)

    def _process(self, line: Line, pid: int, _role: str) -> None:
        self._processes[pid].append((line.at, line.writer))

    def _publish(self, line: Line, number: int, messages: list[list[str]]) -> None:
        transaction = Transaction(line.writer, line.at, [(topic, key, id) for topic, key, id in messages])
        self._transactions[line.writer, number] = transaction
        self.record.transactions.append(transaction)

    def _serves(self, line: Line, database: str) -> None:
        self._databases[line.writer] = database

    def _relays(self, line: Line, number: int, database: str) -> None:
        self._transactions[line.writer, number].relayed_by = database

    def _told(self, line: Line, number: int) -> None:
        transaction = self._transactions[line.writer, number]
        transaction.told = transaction.ended = line.at

    def _back(self, line: Line, number: int) -> None:
        transaction = self._transactions[line.writer, number]
        transaction.back, transaction.ended = True, line.at

    def _doubt(self, line: Line, number: int, _error: str) -> None:
        transaction = self._transactions[line.writer, number]
        transaction.ended, transaction.doubted = line.at, True

    def _begin(
        self, line: Line, topic: str, group: str, partition: int, offset: int, id: str, attempt: int, run: int = 0
    ) -> None:
        """run: which of those that the process has in flight; two may be of one attempt, if the first was held up."""
        database = self._databases[line.writer]
        at = partition_at(database, partition), offset_at(database, offset)
        handling = Handling(topic, group, *at, id, attempt, line.writer, line.at)
        self._running[line.writer, topic, group, offset, attempt, run].append(handling)
        self.record.handlings.append(handling)

    def _end(self, line: Line, topic: str, group: str, offset: int, attempt: int, outcome: str, run: int = 0) -> None:
        handling = self._running[line.writer, topic, group, offset, attempt, run].pop(0)
        handling.ended, handling.outcome = line.at, outcome

    def _died(self, line: Line, topic: str, group: str, offset: int) -> None:
        self.record.faults.append(Fault("handler-dies", line.at, line.at, frozenset([line.writer])))

    def _hangs(self, line: Line, seconds: float) -> None:
        self.record.faults.append(Fault("hang-consumer", line.at, line.at + seconds, frozenset([line.writer])))

    def _blocks(self, line: Line, seconds: float) -> None:
        self.record.blocked.append((line.at, line.at + seconds, line.writer))

    def _settled(self, line: Line, topic: str, group: str, offset: int, attempt: int, outcome: str) -> None:
        offset = offset_at(self._databases[line.writer], offset)
        self.record.settled.append((line.at, line.writer, topic, group, offset, attempt, outcome))

    def _dead(self, line: Line, topic: str, group: str, offset: int, _attempt: int) -> None:
        self.record.dead_lettered.setdefault((topic, group, offset_at(self._databases[line.writer], offset)), line.at)

    def _acquired(self, line: Line, topic: str, group: str, partitions: list[int], _subscriber: str) -> None:
        database = self._databases[line.writer]
        for partition in partitions:
            self.record.acquired.append((line.at, line.writer, topic, group, partition_at(database, partition)))

    def _released(self, line: Line, topic: str, group: str, partitions: list[int], _subscriber: str) -> None:
        database = self._databases[line.writer]
        for partition in partitions:
            self.record.released.append((line.at, line.writer, topic, group, partition_at(database, partition)))

    def _removed(self, _line: Line, topic: str, group: str, id: str) -> None:
        self.record.removed.add((topic, group, id))

    def _wrong(self, line: Line, what: str) -> None:
        self.record.wrong.append((line.at, what))

    def _complaint(self, line: Line, task: str, fault: str) -> None:
        self.record.complaints.append((line.at, line.writer, task, fault))

    def _offer(self, line: Line, number: int, name: str, what: str, delay: float) -> None:
        offer = Offer(name, number, what, delay, line.at)
        self._offers[line.writer, number] = offer
        self.record.jobs.offers.append(offer)

    def _offered(self, line: Line, number: int, told: str | bool) -> None:
        offer = self._offers[line.writer, number]
        offer.told, offer.ended = told, line.at

    def _offer_back(self, line: Line, number: int) -> None:
        offer = self._offers[line.writer, number]
        offer.back, offer.ended = True, line.at

    def _value(self, _line: Line, name: str, value: int) -> None:
        self.record.jobs.values[name].add(value)

    def _task(self, line: Line, number: int, id: str, kind: str, total: int) -> None:
        task = Enqueued(id, kind, total)
        self._tasks[line.writer, number] = task
        self.record.jobs.enqueued.append(task)

    def _task_told(self, line: Line, number: int) -> None:
        self._tasks[line.writer, number].told = True

    def _task_back(self, line: Line, number: int) -> None:
        self._tasks[line.writer, number].back = True

    def _batch(self, _line: Line, name: str) -> None:
        self.record.jobs.batches[name] = None

    def _batch_told(self, _line: Line, name: str, filled: bool) -> None:
        self.record.jobs.batches[name] = filled

    def _ask(self, line: Line, number: int, id: str, timeout: float) -> None:
        ask = Ask(id, line.writer, timeout, line.at)
        self._asks[line.writer, number] = ask
        self.record.jobs.asks.append(ask)

    def _answer(self, line: Line, number: int, what: str, value: Any) -> None:
        ask = self._asks[line.writer, number]
        ask.ended, ask.what, ask.value = line.at, what, value

    def _sockets(self, _line: Line, count: int) -> None:
        self.record.jobs.sockets.append(count)

    def _filtered(self, _line: Line, topic: str, group: str, count: int) -> None:
        self.record.jobs.filtered[topic, group] += count

    def _left(self, line: Line, _name: str) -> None:
        self.record.left.add(line.writer)

    def _ticks_paused(self, line: Line, since: float) -> None:
        self.record.jobs.pauses.append((since, line.at))

    def _phase(self, line: Line, kind: str, number: int, began: float) -> None:
        self.record.phases.append(Phase(kind, number, began, line.at))

    def _change(self, _line: Line, topic: str, later: list[int], began: float, ended: float | None) -> None:
        self.record.changes.append(Change(topic, *later, began, ended))

    def _collected(self, _line: Line, _topic: str, count: int) -> None:
        self.record.collected += count

    def _failover(
        self, _line: Line, died: float, opened: float, forgotten: list[list[str]], pending: list[list[str]]
    ) -> None:
        held = frozenset((topic, id) for topic, id in forgotten)
        waiting = frozenset((topic, group, id) for topic, group, id in pending)
        self.record.failovers.append(Failover(died, opened, held, waiting))

    def _fault(self, line: Line, kind: str, began: float, victims: list[int] | str) -> None:
        """victims: their process ids, EVERYBODY, or a database."""
        self._faults.append((kind, began, line.at, victims))


class Settle(NamedTuple):
    """A settle that was confirmed to a consumer, with the fields in their order in Record.settled."""

    at: float
    process: int
    topic: str
    group: str
    offset: int
    attempt: int
    outcome: str


def settles(record: Record) -> Iterator[tuple[Handling, Settle]]:
    """Yield each settle with the handling that it is of: the last one of its offset and attempt, in its process, that
    began before it. A server that crashed, or took another one's place, may have given the offset to another message.
    """
    begun: dict[tuple[int, str, str, int, int], list[Handling]] = defaultdict(list)
    for each in record.handlings:
        begun[each.process, each.topic, each.group, each.offset, each.attempt].append(each)
    for settle in map(Settle._make, record.settled):
        of_attempt = begun[settle.process, settle.topic, settle.group, settle.offset, settle.attempt]
        index = bisect_right(of_attempt, settle.at, key=lambda each: each.began)
        if index:
            yield of_attempt[index - 1], settle


def by_message(handlings: Iterable[Handling]) -> dict[tuple[str, str, str], list[Handling]]:
    """Return the handlings of each (topic, group, id), in the order in which they began."""
    found: dict[tuple[str, str, str], list[Handling]] = defaultdict(list)
    for handling in handlings:
        found[handling.topic, handling.group, handling.id].append(handling)
    return found
