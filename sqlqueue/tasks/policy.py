"""What becomes of a task that raises, and how long its result is kept: the backend's OPTIONS, and a task's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from django.apps import apps
from django.utils.module_loading import import_string

from sqlqueue.core import outcomes
from sqlqueue.core.bounds import CENTURY, DAY, duration
from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.outcomes import Outcome
from sqlqueue.core.retry_policy import Backoff, BackoffFunction, RetryFilter
from sqlqueue.exceptions import ConfigurationError

Function = TypeVar("Function", bound=Callable[..., Any])

# The options and their defaults. Those of `@consumer` have their meaning there.
DEFAULTS: Final[Mapping[str, Any]] = {
    "max_attempts": 1,
    "backoff": 1.0,
    "max_backoff": 3600.0,
    "jitter": 0.33,
    "retry_for": None,
    "reject_for": (),
    "visibility_timeout": DAY,
    "keep_results": timedelta(days=7),
}
PACKAGES: Final = "packages"  # the option of a backend that is not about how a task runs
NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
OWN_OPTIONS: Final = "sqlqueue_task_options"  # the attribute of a task's function
CLASSES: Final = ("retry_for", "reject_for")


@dataclass(frozen=True, slots=True)
class Policy:
    """max_attempts: how many attempts may raise, None for no bound; retried: what is tried again; visibility_timeout:
    seconds that an attempt may take; keep_results: after the end, None for ever."""

    max_attempts: int | None
    backoff: Backoff | BackoffFunction
    retried: RetryFilter
    visibility_timeout: float
    keep_results: timedelta | None

    def decide(self, error: BaseException, failures: int) -> Outcome:
        """Return what becomes of a task that has raised, this time included `failures` times."""
        return outcomes.decide(error, failures, self.max_attempts, self.backoff, self.retried)


def task_options(**options: Any) -> Callable[[Function], Function]:
    """Give a task options of its own, which win over the backend's OPTIONS. It stands below `@task`.

    max_attempts, backoff, max_backoff, jitter, retry_for, reject_for, visibility_timeout: as in `@consumer`;
    keep_results: a timedelta, or None for ever. Another backend ignores them. Raises ConfigurationError for an option
    that is unknown or cannot work; before Django's models are loaded only for a task that is run.
    """
    if apps.models_ready:
        policy_of({}, options)

    def decorate(function: Function) -> Function:
        if hasattr(function, "func"):
            raise ConfigurationError(f"@task_options stands below @task: {function!r} is a task already")
        setattr(function, OWN_OPTIONS, options)
        return function

    return decorate


def packages_of(options: Any) -> tuple[str, ...]:
    """Return the packages that a backend's OPTIONS name. Raises ConfigurationError for what are no names."""
    given = options.get(PACKAGES, ()) if isinstance(options, Mapping) else ()
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) and NAME.fullmatch(one) for one in given):
        raise ConfigurationError(f"{PACKAGES} must be a list of packages' or modules' dotted names, not {given!r}")
    return tuple(given)


def policy_of(backend: Any, own: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy of a backend's OPTIONS and of a task's own, which win. Raises ConfigurationError for an option
    that is unknown or cannot work."""
    if not isinstance(backend, Mapping):
        raise ConfigurationError(f"OPTIONS must be a dict, not {backend!r}")
    packages_of(backend)
    options = {name: value for name, value in backend.items() if name != PACKAGES} | dict(own or {})
    for name in options:
        if name not in DEFAULTS:
            raise ConfigurationError(f"tasks have no option {name!r}.{did_you_mean(str(name), DEFAULTS)}")
    values = {**DEFAULTS, **options}
    keep = _kept(values.pop("keep_results"))
    for name in CLASSES:
        values[name] = _imported(values[name], name)
    if callable(values["backoff"]):  # then only what was given, as for a consumer
        values = {name: value for name, value in values.items() if name in options or name not in _OF_A_NUMBER}
    from sqlqueue.consumers.declare.registry import build  # tasks are declared before the models are loaded

    made = build("tasks", {"ordering": "none", **values})
    return Policy(made.options.max_attempts, made.backoff, made.retried, made.options.visibility_timeout, keep)


_OF_A_NUMBER = ("max_backoff", "jitter")  # refused beside a function as backoff


def _kept(value: Any) -> timedelta | None:
    if value is None:
        return None
    problems: list[str] = []
    seconds = duration(value, "keep_results", problems, 0, CENTURY)
    if problems or seconds is None:
        raise ConfigurationError("; ".join(problems))
    return timedelta(seconds=seconds)


def _imported(value: Any, name: str) -> Any:
    """Return exception classes, of which settings give the dotted paths."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (tuple, list)):
        return value
    try:
        return tuple(import_string(one) if isinstance(one, str) else one for one in value)
    except ImportError as error:
        raise ConfigurationError(f"{name} names a class that cannot be imported: {error}") from error
