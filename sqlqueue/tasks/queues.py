"""The queues that `TASKS` names, as topics and as consumers, and how they are connected when the app is ready.
Importing this needs no Tasks interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, register
from django.utils.module_loading import import_string

from sqlqueue.checks import TAG
from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Consumer, Registry, build, registry
from sqlqueue.core.codec import decode
from sqlqueue.core.effects import register as register_effect
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, TOPIC_LENGTH, checked_consumed
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.tasks.states import BACKEND_LENGTH, GROUP, PREFIX, TASKS, topic_of

if TYPE_CHECKING:
    from sqlqueue.tasks.policy import Policy

STREAMS: Final = 10  # priorities of a queue's topic
BACKEND: Final = "sqlqueue.tasks.SqlQueueBackend"
PRIORITY_HEADER: Final = "priority"  # the exact one, of which a stream has several
LIMIT: Final = "visibility_timeout"  # the option
DEFAULT_QUEUES: Final = ("default",)  # the interface's default


@dataclass(frozen=True, slots=True)
class TaskBackend:
    """An entry of TASKS that names this backend, or a subclass of it."""

    alias: str
    queues: tuple[str, ...]
    options: Any


def backends() -> Iterator[TaskBackend]:
    """Yield the entries of TASKS that are this package's; an entry that is wrong in itself is Django's to report."""
    given = getattr(django_settings, "TASKS", None)
    for alias, params in given.items() if isinstance(given, Mapping) else ():
        if isinstance(params, Mapping) and _is_ours(params.get("BACKEND")):
            queues = params.get("QUEUES", DEFAULT_QUEUES)
            are_names = isinstance(queues, (list, tuple, set, frozenset))
            named = tuple(dict.fromkeys(map(str, queues))) if are_names else ()
            yield TaskBackend(str(alias), named, params.get("OPTIONS", {}))


def _is_ours(path: Any) -> bool:
    if path == BACKEND:
        return True
    if not isinstance(path, str) or path.startswith(("django.", "django_tasks.")):
        return False
    try:
        kind = import_string(path)
        from sqlqueue.tasks.backend import SqlQueueBackend
    except Exception:  # Django says so when the backend is used
        return False
    return isinstance(kind, type) and issubclass(kind, SqlQueueBackend)


def topics() -> dict[str, int]:
    """Return the topics of all queues, with their priorities: what settings.declared_elsewhere asks for."""
    return {topic_of(queue): STREAMS for backend in backends() for queue in backend.queues}


def may_have_tasks(path: str) -> bool:
    """Tell whether a task may stand at a dotted path: in a module of an installed app's package, or of one that
    OPTIONS["packages"] names. No other module is imported because a message names it."""
    from sqlqueue.tasks.policy import packages_of

    named = {name for backend in backends() for name in packages_of(backend.options)}
    return any(path.startswith(f"{name}.") for name in {config.name for config in apps.get_app_configs()} | named)


def add_consumers(registry: Registry) -> None:
    """Register the consumer of each queue, and no others that were registered so before."""
    for group_topic, present in list(registry.consumers.items()):
        if present.group == GROUP and present.topic.startswith(PREFIX):
            del registry.consumers[group_topic]
    if not _has_interface():
        return  # E027 says so
    for backend in backends():
        for queue in backend.queues:
            registry.add(_consumer(topic_of(queue), policy(backend)))


def _has_interface() -> bool:
    return django.VERSION >= (6, 0) or find_spec("django_tasks") is not None


def policy(backend: TaskBackend) -> Policy:
    """Return what the backend's OPTIONS say. Raises ConfigurationError."""
    from sqlqueue.tasks.policy import policy_of

    try:
        return policy_of(backend.options)
    except ConfigurationError as error:
        raise ConfigurationError(f"TASKS[{backend.alias!r}]: {error}") from error


def _consumer(topic: str, policy: Policy) -> Consumer:
    from sqlqueue.tasks.runner import run_task

    # The runner decides about errors, and here only deaths count: five in a row, as for any consumer without a bound.
    made = build(
        topic,
        {
            "group": GROUP,
            "ordering": "none",
            "max_attempts": None,
            LIMIT: policy.visibility_timeout,
        },
    )
    return replace(made, handler=run_task, options=replace(made.options, urgency=urgency))


def urgency(headers: Any) -> int:
    """Return the exact priority of a task, by the headers of its message."""
    try:
        return int(decode(headers)[PRIORITY_HEADER])
    except (KeyError, TypeError, ValueError):  # not published by enqueue()
        return 0


def problems() -> Iterator[str]:
    """Yield what is wrong with the entries of TASKS."""
    for backend in backends():
        name = f"TASKS[{backend.alias!r}]"
        if len(backend.alias) > BACKEND_LENGTH:
            yield f"{name}: the alias has {len(backend.alias)} characters; {BACKEND_LENGTH} is the most"
        if not backend.queues:
            yield f"{name}['QUEUES'] must list the queues: each is a topic, which runconsumers serves"
        for queue in backend.queues:
            if queue.endswith(DEAD_LETTER_SUFFIX):
                yield f"{name}['QUEUES'] names {queue!r}: {DEAD_LETTER_SUFFIX} ends the names of dead-letter topics"
                continue
            try:
                checked_consumed(topic_of(queue))
            except ConfigurationError as error:
                yield f"{name}['QUEUES'] names {queue!r}: {error}; {TOPIC_LENGTH} is the most with {PREFIX!r}"
        try:
            policy(backend)
        except ConfigurationError as error:
            yield str(error)
        if not _has_interface():
            yield f"{name} needs Django 6.0 or later, or the package django-tasks: pip install 'sqlqueue[tasks]'"


def connect() -> None:
    """Connect them. Nothing of the Tasks interface is imported yet."""
    settings.declared_elsewhere = topics
    if add_consumers not in registry.sources:
        registry.sources.append(add_consumers)
    register_effect(TASKS)


@register(TAG)
def check_tasks(**kwargs: Any) -> list[CheckMessage]:
    """E027: an entry of TASKS that names this backend is wrong."""
    hint = "Correct TASKS in the settings: docs/tasks.md has the options."
    return [Error(problem, hint=hint, id="sqlqueue.E027") for problem in problems()]
