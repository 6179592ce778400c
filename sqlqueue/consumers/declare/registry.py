"""The `@consumer` decorator, and the registry of consumers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from django.utils.module_loading import autodiscover_modules

from sqlqueue.conf import settings
from sqlqueue.core import outcomes
from sqlqueue.core.bounds import DAY, SHORTEST, duration, whole
from sqlqueue.core.effects import effect_of
from sqlqueue.core.filters import Filter
from sqlqueue.core.flow import NO_FLOW, Flow, checked_flow
from sqlqueue.core.keys import GROUP_LENGTH, checked_consumed, checked_name, did_you_mean
from sqlqueue.core.not_run import is_async, is_generator
from sqlqueue.core.outcomes import Outcome
from sqlqueue.core.partition.ref import ConsumerOptions
from sqlqueue.core.periodic import ScheduleDefinition
from sqlqueue.core.retry_policy import ALL, Backoff, BackoffFunction, RetryFilter, checked_filter, checked_function
from sqlqueue.exceptions import LONGEST_DELAY, ConfigurationError, InvalidMessage, LeaseLost
from sqlqueue.log.groups import EARLIEST, LATEST
from sqlqueue.payloads.topic_types import PayloadReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sqlqueue.consumers.declare.options import HandlerOptions, OfOne, OfOneTyped, OfSeveral, OfSeveralTyped
    from sqlqueue.consumers.handlers.delivery import Payload

Handler = TypeVar("Handler", bound=Callable[..., Any])

ORDERINGS = ("key", "partition", "none")
DEFAULTS: dict[str, Any] = {
    "group": "default",
    "ordering": "key",
    "max_attempts": 5,
    "visibility_timeout": 60.0,
    "backoff": 1.0,
    "max_backoff": 3600.0,
    "jitter": 0.33,
    "retry_for": None,
    "reject_for": (),
    "batch": False,
    "atomic": False,
    "commit_every": 1,
    "batch_size": 100,
    "start": EARLIEST,
    "payload_type": None,
    "upcast": None,
    "keep_results": None,
    "where": None,
    "active": None,
    "rate_limit": None,
    "rate_limit_per_key": None,
    "concurrency_limit": None,
    "concurrency_limit_per_key": None,
    "retry_budget": None,
}

MOST_ATTEMPTS = 1_000
MOST_OF_A_BATCH = 10_000
# Least and most seconds.
DURATIONS = {
    "visibility_timeout": (SHORTEST, 30 * DAY),
    "backoff": (0.0, LONGEST_DELAY),
    "max_backoff": (0.0, LONGEST_DELAY),
    "keep_results": (SHORTEST, LONGEST_DELAY),
}


def _no_handler(delivery: object) -> None:
    raise LeaseLost("a pulled delivery has no handler")


@dataclass(frozen=True, slots=True)
class Consumer:
    """A handler with its options."""

    topic: str
    group: str
    options: ConsumerOptions
    backoff: Backoff | BackoffFunction
    start: str
    handler: Callable[..., Any] = _no_handler
    retried: RetryFilter = ALL
    payloads: PayloadReader | None = None  # None: as JSON has them
    flow: Flow = NO_FLOW
    declares: bool = True  # its processes store the flow, also one without limits
    is_async: bool = field(init=False, repr=False)  # calling the handler gives an awaitable
    name: str = field(init=False, repr=False)  # the handler's dotted name

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", is_async(self.handler))
        object.__setattr__(self, "name", f"{self.handler.__module__}.{_name(self.handler)}")

    def decide(self, error: BaseException, attempt: int, retried: RetryFilter | None = None) -> Outcome:
        """Return the outcome of a delivery whose handler raised; retried: another filter than the consumer's own."""
        if (effect := effect_of(error)) is not None:
            try:
                return outcomes.with_effect(effect, error)
            except InvalidMessage as refused:  # the handler's mistake, as any other exception
                error = refused
        return outcomes.decide(error, attempt, self.options.max_attempts, self.backoff, retried or self.retried)


class Registry:
    """The registered consumers, by (group, topic), and periodic schedules, by name. `duplicates` has pairs of different
    handlers of one group and topic; a system check reports them."""

    def __init__(self) -> None:
        self.schedules: dict[str, ScheduleDefinition] = {}
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.duplicates: list[tuple[Consumer, Consumer]] = []
        self.sources: list[Callable[[Registry], None]] = []  # what else adds consumers, beside the apps' modules

    def add(self, consumer: Consumer) -> None:
        """Register a consumer. A function that is registered again, because its module was reloaded, replaces
        itself."""
        group_topic = (consumer.group, consumer.topic)
        present = self.consumers.get(group_topic)
        if present is not None and present.name != consumer.name:
            self.duplicates.append((present, consumer))
            return
        self.consumers[group_topic] = consumer

    def discover(self) -> None:
        """Import the `consumers` module of every installed app, and add what other settings ask for (TASKS)."""
        autodiscover_modules(settings.CONSUMERS_MODULE)
        for add_consumers in self.sources:
            add_consumers(self)

    def select(self, groups: Iterable[str] = (), topics: Iterable[str] = ()) -> list[Consumer]:
        """Return the consumers of these groups and topics (none named: all).

        Raises ConfigurationError for a group or topic without a handler.
        """
        groups, topics = list(groups), list(topics)
        for kind, wanted, index in (("group", groups, 0), ("topic", topics, 1)):
            known = {group_topic[index] for group_topic in self.consumers}
            for name in wanted:
                if name not in known:
                    raise ConfigurationError(
                        f"no handler is registered for {kind} {name!r}.{did_you_mean(name, known)}"
                    )
        return [
            consumer
            for (group, topic), consumer in sorted(self.consumers.items())
            if (not groups or group in groups) and (not topics or topic in topics)
        ]


registry = Registry()


@overload
def consumer(
    topic: str,
    *,
    group: str = "default",
    batch: Literal[False] = False,
    payload_type: type[Payload],
    **options: Unpack[HandlerOptions],
) -> OfOneTyped[Payload]: ...
@overload
def consumer(
    topic: str,
    *,
    group: str = "default",
    batch: Literal[True],
    payload_type: type[Payload],
    **options: Unpack[HandlerOptions],
) -> OfSeveralTyped[Payload]: ...
@overload
def consumer(
    topic: str,
    *,
    group: str = "default",
    batch: Literal[False] = False,
    payload_type: str | None = None,
    **options: Unpack[HandlerOptions],
) -> OfOne: ...
@overload
def consumer(
    topic: str,
    *,
    group: str = "default",
    batch: Literal[True],
    payload_type: str | None = None,
    **options: Unpack[HandlerOptions],
) -> OfSeveral: ...
def consumer(topic: str, **options: Any) -> Callable[[Any], Any]:
    """Register the decorated function as the handler of a topic for a group.

    group: "default" unless named
    ordering: "key", "partition" or "none"
    max_attempts: None: no bound
    visibility_timeout: seconds that a handler may run
    backoff: seconds before the first retry, doubling to max_backoff, spread by ±jitter; or a function of (attempt) or
        (attempt, error)
    retry_for, reject_for: the only exception classes that are retried, and those that are not
    batch, batch_size: the handler gets a list of up to so many deliveries
    atomic: the handler runs in one transaction with its ack
    commit_every: so many atomic handlers of a partition share a transaction
    start: "earliest" or "latest", for a new group
    payload_type: the class of delivery.payload, or its dotted path
    upcast: {version: function} that returns the payload of the next version
    keep_results: seconds or a timedelta for which what the handler returns is stored
    where: conditions on headers, payload, key and id (core.filters)
    active: hours, such as "mon-fri 22:00-06:00 Europe/Berlin"
    rate_limit, rate_limit_per_key: messages that start in a time ("100/m"), of the group, of one key
    concurrency_limit, concurrency_limit_per_key: handlers at once of the group, messages in flight of one key
    retry_budget: failures in a time ("20/m") after which one message is tried at a time

    Raises ConfigurationError for an option that is unknown or cannot work, and a function that takes no single
    argument.
    """
    if callable(topic):
        raise ConfigurationError('@consumer needs the topic: @consumer("flights")')
    return registering(topic, options)


def registering(topic: str, options: dict[str, Any]) -> Callable[[Handler], Handler]:
    """Return the decorator that registers a handler with these options."""
    made = build(topic, options)

    def decorate(handler: Handler) -> Handler:
        _check_signature(handler, made.options.batch)
        if is_async(handler) and made.options.atomic:
            raise ConfigurationError(
                f"{_name(handler)} is async and atomic, but Django's transactions are not async: "
                "make it a plain function"
            )
        registry.add(replace(made, handler=handler))
        return handler

    return decorate


def _name(handler: Callable[..., Any]) -> str:
    return str(getattr(handler, "__qualname__", None) or type(handler).__qualname__)


def _check_signature(handler: Callable[..., Any], batch: bool) -> None:
    name = _name(handler)
    short = name.rpartition(".")[2]
    argument = "deliveries" if batch else "delivery"
    right = f"write def {short if short.isidentifier() else 'handle'}({argument}): a handler is called with " + (
        "a list of deliveries" if batch else "one delivery, which has payload and headers"
    )
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        raise ConfigurationError(f"{name}{inspect.signature(handler)} cannot handle deliveries; {right}") from None
    except ValueError:
        return  # a function that is written in C has no signature
    if is_generator(handler):
        raise ConfigurationError(f"{name} is a generator, so calling it does nothing: leave the yield out; {right}")


def build(topic: str, options: dict[str, Any]) -> Consumer:
    """Return a Consumer without a handler from a topic and options as `@consumer` takes them. Raises
    ConfigurationError for those that cannot work."""
    checked_consumed(topic)
    for name in options:
        if name not in DEFAULTS:
            raise ConfigurationError(f"consumer of {topic!r}: no option {name!r}.{did_you_mean(name, DEFAULTS)}")
    values = {**DEFAULTS, **options}
    checked_name(values["group"], "group", GROUP_LENGTH)
    problems: list[str] = []
    if values["ordering"] not in ORDERINGS:
        problems.append(f"ordering must be one of {', '.join(ORDERINGS)}, not {values['ordering']!r}")
    if values["start"] not in (EARLIEST, LATEST):
        problems.append(f"start must be {EARLIEST!r} or {LATEST!r}, not {values['start']!r}")
    if values["max_attempts"] is not None:
        whole(values["max_attempts"], "max_attempts", problems, MOST_ATTEMPTS)
    whole(values["batch_size"], "batch_size", problems, MOST_OF_A_BATCH)
    whole(values["commit_every"], "commit_every", problems, MOST_OF_A_BATCH)
    values["visibility_timeout"] = _duration(values, "visibility_timeout", problems)
    backoff = _backoff(values, options, problems)
    retried = checked_filter(values["retry_for"], values["reject_for"], problems)
    for name in ("batch", "atomic"):
        if not isinstance(values[name], bool):
            problems.append(f"{name} must be True or False, not {values[name]!r}")
    if values["keep_results"] is not None:
        values["keep_results"] = _duration(values, "keep_results", problems)
    where: Filter | None = None
    if values["where"] is not None:
        try:
            where = Filter(values["where"])
        except ConfigurationError as error:
            problems.append(str(error))
    flow = checked_flow(values, problems)
    problems += [text for broken, text in _rules(values, flow) if broken]
    if problems:
        raise ConfigurationError(f"consumer of {topic!r}: " + "; ".join(problems))
    try:
        payloads = PayloadReader(topic, values["payload_type"], values["upcast"])
    except ConfigurationError as error:
        raise ConfigurationError(f"consumer of {topic!r}: {error}") from error
    consumer_options = ConsumerOptions(
        values["ordering"],
        values["max_attempts"],
        values["visibility_timeout"],
        values["batch"],
        values["batch_size"],
        values["atomic"],
        values["keep_results"],
        where=where,
        commit_every=values["commit_every"],
    )
    return Consumer(
        topic,
        values["group"],
        consumer_options,
        backoff,
        values["start"],
        retried=retried,
        payloads=payloads,
        flow=flow,
    )


def _rules(values: dict[str, Any], flow: Flow) -> list[tuple[bool, str]]:
    """Return the rules between options: whether each is broken, and what is said then."""
    batch, ordering, shares = values["batch"] is True, values["ordering"], values["commit_every"] != 1
    return [
        (
            batch and values["keep_results"] is not None,
            "keep_results stores what a handler returns for one message: leave batch out",
        ),
        (
            shares and values["atomic"] is not True,
            "commit_every lets atomic handlers share transactions: write atomic=True beside it",
        ),
        (
            shares and batch,
            (
                "commit_every is for handlers that get one delivery, and a batch is one transaction as it is: leave "
                "commit_every or batch out"
            ),
        ),
        (
            shares and values["rate_limit_per_key"] is not None,
            (
                "rate_limit_per_key lets the first message of a key wait, but those that share a transaction are "
                "chosen and started together: leave it or commit_every out"
            ),
        ),
        (
            shares and values["concurrency_limit_per_key"] is not None,
            (
                "concurrency_limit_per_key bounds handlers that run at once, and those that share a transaction run "
                "one after another: leave it or commit_every out"
            ),
        ),
        (
            flow.rate_per_key is not None and (ordering != "key" or batch),
            (
                "rate_limit_per_key lets the first message of a key wait, and those behind it with it: it needs "
                'ordering="key" (under which no two messages of a key run at once), and no batch'
            ),
        ),
        (
            flow.concurrency_per_key is not None and (ordering != "none" or batch),
            (
                'concurrency_limit_per_key needs ordering="none" and no batch: with ordering="key" one message of a '
                'key is in flight at a time, with ordering="partition" one of a partition, and a batch is handled as '
                "one"
            ),
        ),
    ]


def _duration(values: dict[str, Any], name: str, problems: list[str]) -> float | None:
    return duration(values[name], name, problems, *DURATIONS[name])


def _backoff(values: dict[str, Any], given: dict[str, Any], problems: list[str]) -> Backoff | BackoffFunction:
    if callable(values["backoff"]):
        problems += [
            f"{name} has no effect with a function as backoff, which returns the whole wait: leave it out"
            for name in ("max_backoff", "jitter")
            if name in given
        ]
        return checked_function(values["backoff"], problems)
    first, longest = _duration(values, "backoff", problems), _duration(values, "max_backoff", problems)
    if first is not None and longest is not None and first > longest:
        text = f"backoff ({first:g} s) is longer than max_backoff ({longest:g} s)"
        problems.append(f"{text}: raise max_backoff, or lower backoff")
    jitter = values["jitter"]
    if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
        problems.append(f"jitter is a fraction from 0 to 1, not {jitter!r}")
    return Backoff(first or 0.0, longest or 0.0, jitter)
