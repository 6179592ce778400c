"""Who handles what: the `@consumer` decorator, and the handlers that it has registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from django.utils.module_loading import autodiscover_modules

from sqlqueue.conf import settings
from sqlqueue.core.backoff import Backoff
from sqlqueue.core.bounds import DAY, SHORTEST, duration, whole
from sqlqueue.core.keys import GROUP_LENGTH, checked_consumed, checked_name, did_you_mean
from sqlqueue.core.stream import Manners
from sqlqueue.exceptions import LONGEST_DELAY, ConfigurationError
from sqlqueue.log.groups import EARLIEST, LATEST

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
    "batch": False,
    "atomic": False,
    "batch_size": 100,
    "start": EARLIEST,
}

MOST_ATTEMPTS = 1_000
MOST_OF_A_BATCH = 10_000
# From how many seconds to how many.
DURATIONS = {
    "visibility_timeout": (SHORTEST, 30 * DAY),
    "backoff": (0.0, LONGEST_DELAY),
    "max_backoff": (0.0, LONGEST_DELAY),
}


@dataclass(frozen=True, slots=True)
class Consumer:
    """A handler and how its deliveries are made."""

    topic: str
    group: str
    handler: Callable[..., Any]
    manners: Manners
    backoff: Backoff
    start: str

    @property
    def name(self) -> str:
        """The handler's dotted name."""
        return f"{self.handler.__module__}.{getattr(self.handler, '__qualname__', self.handler)}"

    @property
    def is_async(self) -> bool:
        """The handler is an `async def`."""
        return inspect.iscoroutinefunction(self.handler)


class Registry:
    """The registered consumers, by (group, topic); what stands twice is kept aside for the checks to name."""

    def __init__(self) -> None:
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.duplicates: list[tuple[Consumer, Consumer]] = []

    def add(self, consumer: Consumer) -> None:
        """Register a consumer. The same function again (its module was reloaded) takes its own place."""
        place = (consumer.group, consumer.topic)
        present = self.consumers.get(place)
        if present is not None and present.name != consumer.name:
            self.duplicates.append((present, consumer))
            return
        self.consumers[place] = consumer

    def discover(self) -> None:
        """Import the `consumers` module of every installed app."""
        autodiscover_modules(settings.CONSUMERS_MODULE)

    def select(self, groups: Iterable[str] = (), topics: Iterable[str] = ()) -> list[Consumer]:
        """Return the consumers of these groups and topics (none named: all); refuse names that nobody has
        registered."""
        groups, topics = list(groups), list(topics)
        for kind, wanted, index in (("group", groups, 0), ("topic", topics, 1)):
            known = {place[index] for place in self.consumers}
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


def consumer(topic: str, **options: Any) -> Callable[[Handler], Handler]:
    """Register the decorated function as the handler of a topic for a group.

    group: "default" unless named; ordering: "key", "partition" or "none"; max_attempts; visibility_timeout: seconds
    that a handler may run; backoff: seconds before the first retry, doubling to max_backoff, spread by ±jitter; batch:
    the handler gets a list of up to batch_size deliveries; atomic: it runs in one transaction with its own ack; start:
    "earliest" or "latest", for a group that is new.

    Raises ConfigurationError for an option that is unknown or cannot work, and for a function that cannot be called
    with one argument.
    """
    if callable(topic):
        raise ConfigurationError('@consumer needs the topic: @consumer("flights")')
    return _registering(topic, options)


def _registering(topic: str, options: dict[str, Any]) -> Callable[[Handler], Handler]:
    made = build(topic, options)

    def decorate(handler: Handler) -> Handler:
        _check_signature(handler, made["manners"].batch)
        if inspect.iscoroutinefunction(handler) and made["manners"].atomic:
            raise ConfigurationError(
                f"{handler.__qualname__} is async and atomic, but Django's transactions are not async: "
                "make it a plain function"
            )
        registry.add(Consumer(topic=topic, handler=handler, **made))
        return handler

    return decorate


def _check_signature(handler: Callable[..., Any], batch: bool) -> None:
    name = getattr(handler, "__qualname__", repr(handler))
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
        return  # written in C, it has no signature to be looked at
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError(f"{name} is a generator, so calling it does nothing: leave the yield out; {right}")


def build(topic: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the validated parts of a Consumer from a topic and options as `@consumer` takes them."""
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
    for name, most_of in (("max_attempts", MOST_ATTEMPTS), ("batch_size", MOST_OF_A_BATCH)):
        whole(values[name], name, most_of, problems)
    for name, (least, most) in DURATIONS.items():
        values[name] = duration(values[name], name, problems, least, most)
    first, longest = values["backoff"], values["max_backoff"]
    if first is not None and longest is not None and first > longest:
        text = f"backoff ({first:g} s) is longer than max_backoff ({longest:g} s)"
        problems.append(f"{text}: raise max_backoff, or lower backoff")
    jitter = values["jitter"]
    if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
        problems.append(f"jitter is a fraction from 0 to 1, not {jitter!r}")
    for name in ("batch", "atomic"):
        if not isinstance(values[name], bool):
            problems.append(f"{name} must be True or False, not {values[name]!r}")
    if problems:
        raise ConfigurationError(f"consumer of {topic!r}: " + "; ".join(problems))
    manners = Manners(
        values["ordering"],
        values["max_attempts"],
        values["visibility_timeout"],
        values["batch"],
        values["batch_size"],
        values["atomic"],
    )
    backoff = Backoff(values["backoff"], values["max_backoff"], values["jitter"])
    return {"group": values["group"], "manners": manners, "backoff": backoff, "start": values["start"]}
