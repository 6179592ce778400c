"""The `@periodic` decorator, and the periodic schedules that this process declares."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Handler, registering, registry
from sqlqueue.core.periodic import (
    LAST,
    PERIODIC_TOPIC,
    ScheduleDefinition,
    checked_definition,
    checked_recurrence,
    checked_schedule,
)
from sqlqueue.exceptions import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sqlqueue.consumers.declare.options import HandlerOptions, OfOne, OfSeveral

Missed = Literal["last", "all", "skip"]

# The handler of each schedule, as (its dotted name, the function).
_handlers: dict[str, tuple[str, Callable[..., Any]]] = {}


@overload
def periodic(
    cron: str | None = None,
    *,
    every: timedelta | float | None = None,
    timezone: str | None = None,
    missed: Missed = "last",
    name: str = "",
    group: str = "",
    topic: str = PERIODIC_TOPIC,
    key: str = "",
    batch: Literal[False] = False,
    **options: Unpack[HandlerOptions],
) -> OfOne: ...
@overload
def periodic(
    cron: str | None = None,
    *,
    every: timedelta | float | None = None,
    timezone: str | None = None,
    missed: Missed = "last",
    name: str = "",
    group: str = "",
    topic: str = PERIODIC_TOPIC,
    key: str = "",
    batch: Literal[True],
    **options: Unpack[HandlerOptions],
) -> OfSeveral: ...
def periodic(
    cron: str | None = None,
    *,
    every: timedelta | float | None = None,
    timezone: str | None = None,
    missed: str = LAST,
    name: str = "",
    group: str = "",
    topic: str = PERIODIC_TOPIC,
    key: str = "",
    **options: Any,
) -> Callable[[Any], Any]:
    """Run the decorated function at the times of a cron expression, or every so often; each time is a message, a tick.

    cron: five fields, by the clocks of `timezone`
    every: seconds or a timedelta, counted from 1970-01-01T00:00Z
    timezone: such as "Europe/Berlin"; "UTC" unless given
    missed: of ticks that fell due while no process ran, or during a pause: "last", "all", or "skip"
    name: of the schedule; module.function unless given
    group: the consumer group; the name unless given
    topic: where the ticks are published, to this group alone
    key: that of the ticks
    options: those of @consumer

    The payload is {"schedule": name, "tick": due time in UTC as ISO 8601}, the id "name@due time".

    Raises ConfigurationError for a time that cannot be or never comes, a name that is taken, and what @consumer
    refuses.
    """
    if callable(cron):
        raise ConfigurationError(
            '@periodic needs a time: @periodic("0 3 * * *") or @periodic(every=timedelta(hours=1))'
        )
    recurrence = checked_recurrence(cron, every, timezone)

    def decorate(handler: Handler) -> Handler:
        function = f"{handler.__module__}.{getattr(handler, '__qualname__', handler)}"
        own = checked_schedule(name or function, "pass name= to @periodic")
        _check_unique(own, function, handler)
        definition = checked_definition(own, recurrence, missed, topic, key, group or own)
        registering(topic, {**options, "group": definition.group})(handler)
        registry.schedules[own] = definition
        _handlers[own] = (function, handler)
        return handler

    return decorate


def _check_unique(name: str, function: str, handler: Callable[..., Any]) -> None:
    """Raise ConfigurationError if a schedule has this name already. A module that is reloaded replaces its own."""
    if name not in registry.schedules:
        return
    other, present = _handlers[name]
    if other != function or present is handler:
        raise ConfigurationError(f"schedule {name!r} of {function} is that of {other}: pass another name= to @periodic")


def declared() -> dict[str, ScheduleDefinition]:
    """Return the periodic schedules of the code and of SQLQUEUE["SCHEDULES"] by name.

    Raises ConfigurationError for a name that both have.
    """
    configured = settings.reading.schedules
    if both := sorted(registry.schedules.keys() & configured.keys()):
        raise ConfigurationError(
            f"schedule {both[0]!r} is in SQLQUEUE['SCHEDULES'] and in the code ({_handlers[both[0]][0]}): rename one"
        )
    return {**registry.schedules, **configured}
