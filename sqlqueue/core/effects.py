"""Effects: what an app of its own adds to the settling of messages. The core calls their hooks, and names no app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlqueue.core.lease import HeldLease
from sqlqueue.exceptions import Settlement


class EffectValue(NamedTuple):
    """What an effect keeps of an outcome until its settle. value: the effect's own; hashable."""

    effect: Effect
    value: Any


class EffectWrite(NamedTuple):
    """A value that is written in the transaction that settles its message. attempts: how many the message has had."""

    offset: int
    attempts: int
    effect: Effect
    value: Any


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
    returns what a topic's count needs attention for (a stats.findings.Finding), None for nothing.
    """

    name: str
    help: str
    text: Callable[[Count], str]
    finding: Callable[[str, Count], Any] = lambda topic, count: None


class Effect:
    """What an app adds to the settling of messages. Each hook does nothing here.

    exception: what a handler raises to have this effect; None: no exception has it; figures: what `survey` counts.
    """

    exception: ClassVar[type[Settlement] | None] = None
    figures: ClassVar[Sequence[Figure]] = ()

    def decide(self, error: Any) -> Any:
        """Return the value of an exception that a handler has raised: the message is acked with it.

        Called once for an attempt, in the handler's thread: for an atomic handler in its open transaction, else outside
        of any. It may ask the database what it can keep. Raises InvalidMessage for what cannot be stored: then the
        handler has failed.
        """
        raise NotImplementedError

    def settle(self, log: Any, lease: HeldLease, writes: Sequence[EffectWrite]) -> None:
        """Write values of messages of one partition, in the current transaction, which settles these and holds the
        fence: the owner's, or an atomic handler's own.

        It may run again for the same messages after an unknown outcome, under the same token: what is there must not
        become two. An error rolls the settle back, which is tried again.
        """

    def sweep(self, log: Any) -> bool:
        """Delete what has served its time, a bounded number of rows, in transactions of its own; return whether there
        is more. Called with each collection, by one process of all."""
        return False

    def survey(self, log: Any, topics: Sequence[str]) -> Mapping[str, Mapping[str, Count]]:
        """Return the counts of each of these topics by the names of the figures, for pages, commands and metrics, in a
        few bounded statements."""
        return {}

    def unsettled(self, log: Any, topic: str) -> Mapping[str, Count]:
        """Return what a drop of a topic would lose, by the names of figures. Called outside of a transaction, perhaps
        several times."""
        return {}

    def drop(self, log: Any, topic: str, most: int) -> int:
        """Delete some of what `unsettled` counts, at most so many rows, in the current transaction; return how many.
        Called until it returns 0, and again if the drop of the topic is repeated."""
        return 0


_registered: list[Effect] = []


def register(effect: Effect) -> None:
    """Register an effect, once: an app does so when it is ready."""
    if effect not in _registered:
        _registered.append(effect)


def registered() -> Sequence[Effect]:
    """Return the effects of the apps that are installed."""
    return _registered


def effect_of(error: BaseException) -> Effect | None:
    """Return the effect that an exception asks for; None for any other exception."""
    return next((one for one in _registered if one.exception is not None and isinstance(error, one.exception)), None)


def figures() -> list[Figure]:
    """Return what the effects of the apps that are installed count."""
    return [figure for effect in _registered for figure in effect.figures]


def texts(counts: Mapping[str, Count]) -> list[str]:
    """Return what pages and commands say of counts by the names of figures, in the active language, without zeros."""
    return [figure.text(count) for figure in figures() if (count := counts.get(figure.name)) and count.count]


def unsettled(log: Any, topic: str) -> dict[str, Count]:
    """Return what a drop of a topic would lose of all effects, by the names of figures."""
    return {name: count for effect in _registered for name, count in effect.unsettled(log, topic).items()}


def write(log: Any, lease: HeldLease, writes: Sequence[EffectWrite]) -> None:
    """Let each effect write its values of messages of one partition, in the current transaction."""
    for effect in dict.fromkeys(each.effect for each in writes):
        effect.settle(log, lease, [each for each in writes if each.effect is effect])
