"""Effects: what an app of its own adds to the settling of messages. The core calls their hooks, and names no app."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from sqlqueue.core.partition.ref import HeldLease
from sqlqueue.exceptions import Settlement

# The headers that make a message need an app, and what INSTALLED_APPS has to name for it.
APPS: Final = {"sqlqueue-batch": "sqlqueue.contrib.batches"}


class EffectValue(NamedTuple):
    """What an effect keeps of an outcome until its settle. value: the effect's own; hashable."""

    effect: Effect
    value: Any


class EffectWrite(NamedTuple):
    """A value that is written in the transaction that settles its message.

    lease: of the message's partition; attempts: how many the message has had; value: what `decide` has returned; of a
    message with the effect's header, whether it is acked (a dead letter otherwise); in one of its topics, the
    DeadLetter; headers: of a message with the header, as the database gave them.
    """

    lease: HeldLease
    offset: int
    attempts: int
    effect: Effect
    value: Any
    headers: Any = None


@dataclass(frozen=True, slots=True)
class Count:
    """How many things of one kind an effect has of a topic. more: the counting ended at its bound, so that there may be
    more."""

    count: int
    more: bool = False


class Figure(NamedTuple):
    """A kind of things that an effect counts of each topic.

    name: of the gauge, after "sqlqueue_", of the count in JSON and of the finding's kind; help: the gauge's text; text:
    returns what pages and commands say of a count, such as "3 open work items", in the active language; finding:
    returns what a topic's count needs attention for (a stats.findings.Finding), None for nothing; lost: a drop of
    the topic loses what it counts.
    """

    name: str
    help: str
    text: Callable[[Count], str]
    finding: Callable[[str, Count], Any] = lambda topic, count: None
    lost: bool = False


class Effect:
    """What an app adds to the settling of messages: eight hooks, each of which does nothing here.

    exception: what a handler raises to have this effect; None: no exception has it; header: of the messages that have
    it, whatever their handlers do; "": none; topics: how the names of its own topics begin, "": it has none; figures:
    what `survey` counts.

    Only the app itself publishes in its topics. They are not dropped, and their messages are not edited; the effect is
    told which of these become dead letters, and which are taken from the schedule.
    """

    exception: ClassVar[type[Settlement] | None] = None
    header: ClassVar[str] = ""
    topics: ClassVar[str] = ""
    figures: ClassVar[Sequence[Figure]] = ()

    def decide(self, error: Any) -> Any:
        """Return the value of an exception that a handler has raised: the message is acked with it.

        Called once for an attempt, in the handler's thread: for an atomic handler in its open transaction, else outside
        of any. It may ask the database what it can keep. Raises InvalidMessage for what cannot be stored: then the
        handler has failed.
        """
        raise NotImplementedError

    def settle(self, log: Any, writes: Sequence[EffectWrite]) -> None:
        """Write values of messages, in the current transaction, which settles these and holds the fences of their
        partitions: the owner's, or an atomic handler's own.

        It may run again for the same messages after an unknown outcome, under the same tokens: what is there must not
        become two. An error rolls the settle back, which is tried again.
        """

    def committed(self, log: Any, writes: Sequence[EffectWrite]) -> bool:
        """Take note of what `settle` has written, soon after its commit, outside of any transaction. Not called after
        the death of a process: so it is called without writes, too, every two seconds if it has returned True (it waits
        for something), else twice a minute."""
        return False

    def withdrawn(self, log: Any, topic: str, group: str, messages: Iterable[Any] | None) -> int:
        """Take note, in the current transaction, that messages are settled without an outcome: cancelled, replaced,
        refused, acknowledged, skipped, purged, deleted or dropped.

        group: the one that does not get them any more; "": all; messages: the headers of those with the effect's, or
        the ids of those in its topics, read as they are taken from here; None: the topic is dropped. Then some of what
        `survey` counts as lost is deleted, and the number returned; called until that is 0.
        """
        return 0

    def returned(self, log: Any, topic: str, group: str, headers: Iterable[Any]) -> None:
        """Take note, in the current transaction, that a group gets messages with these headers again: it is rewound, or
        they are replayed or republished."""

    def group_removed(self, log: Any, topic: str, group: str) -> None:
        """Take note, in the current transaction, that a group is removed."""

    def sweep(self, log: Any) -> bool:
        """Delete what has served its time, a bounded number of rows, in transactions of its own; return whether there
        is more. Called with each collection, by one process of all."""
        return False

    def survey(self, log: Any, topics: Sequence[str]) -> Mapping[str, Mapping[str, Count]]:
        """Return the counts of each of these topics by the names of the figures, for pages, commands and metrics, in a
        few bounded statements. Of a single topic they are its own, however many others there are."""
        return {}


_registered: list[Effect] = []
_with_header: list[Effect] = []
_missing = dict(APPS)


def register(effect: Effect) -> None:
    """Register an effect, once: an app does so when it is ready."""
    if effect not in _registered:
        _registered.append(effect)
        if effect.header:
            _with_header.append(effect)
            _missing.pop(effect.header, None)


def registered() -> Sequence[Effect]:
    """Return the effects of the apps that are installed."""
    return _registered


def with_header() -> Sequence[Effect]:
    """Return those that messages have by a header."""
    return _with_header


def owner_of(topic: str) -> Effect | None:
    """Return the effect whose own topic this is; None: it is no app's."""
    return next((one for one in _registered if one.topics and topic.startswith(one.topics)), None)


def of_headers(headers: Any) -> list[Effect]:
    """Return the effects that a message has by its headers, as the database gave them; None: it has no headers."""
    return [effect for effect in _with_header if effect.header in headers] if headers else []


def missing_app(headers: Any) -> str:
    """Return what INSTALLED_APPS does not name, and a message with these headers needs; "" if it needs nothing."""
    return next((app for header, app in _missing.items() if header in headers), "")


def effect_of(error: BaseException) -> Effect | None:
    """Return the effect that an exception asks for; None for any other exception."""
    return next((one for one in _registered if one.exception is not None and isinstance(error, one.exception)), None)


def figures() -> list[Figure]:
    """Return what the effects of the apps that are installed count."""
    return [figure for effect in _registered for figure in effect.figures]


def texts(counts: Mapping[str, Count]) -> list[str]:
    """Return what pages and commands say of counts by the names of figures, in the active language, without zeros."""
    return [figure.text(count) for figure in figures() if (count := counts.get(figure.name)) and count.count]


def lost_with(log: Any, topic: str) -> dict[str, Count]:
    """Return what a drop of a topic would lose of all effects, by the names of figures."""
    lost = {figure.name for figure in figures() if figure.lost}
    found = (effect.survey(log, [topic]).get(topic, {}) for effect in _registered)
    return {name: count for counts in found for name, count in counts.items() if name in lost}


def write(log: Any, writes: Iterable[EffectWrite]) -> None:
    """Let each effect write its values, in the current transaction."""
    for effect, its in by_effect(writes).items():
        effect.settle(log, its)


def by_effect(writes: Iterable[EffectWrite]) -> dict[Effect, list[EffectWrite]]:
    """Return what is to be written by effect."""
    found: dict[Effect, list[EffectWrite]] = {}
    for each in writes:
        found.setdefault(each.effect, []).append(each)
    return found
