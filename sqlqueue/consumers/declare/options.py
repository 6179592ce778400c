"""The options of `@consumer`, `@periodic` and `subscribe`, and what they make of a handler, for type checkers.

`registry.DEFAULTS` has the same names with their defaults, and `registry.build` checks the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from sqlqueue.consumers.handlers.delivery import Delivery, Payload

Duration = float | timedelta
ErrorClasses = type[BaseException] | Sequence[type[BaseException]]

OneByOne = TypeVar("OneByOne", bound=Callable[[Delivery[Any]], Any])
Together = TypeVar("Together", bound=Callable[[list[Delivery[Any]]], Any])
Returned = TypeVar("Returned")


class SharedOptions(TypedDict, total=False):
    """What a group of any kind may have; `consumer` says what each means."""

    ordering: Literal["key", "partition", "none"]
    max_attempts: int | None
    visibility_timeout: Duration
    backoff: Duration | Callable[..., Duration]
    max_backoff: Duration
    jitter: float
    retry_for: ErrorClasses | None
    reject_for: ErrorClasses
    batch_size: int
    start: Literal["earliest", "latest"]
    upcast: Mapping[int, Callable[[Any], Any]] | None
    keep_results: Duration | None
    where: Mapping[str, Any] | None
    active: str | None
    rate_limit: str | None
    rate_limit_per_key: str | None
    concurrency_limit: int | None
    concurrency_limit_per_key: int | None
    retry_budget: str | None


class HandlerOptions(SharedOptions, total=False):
    """The options of a handler, but for those on which its argument depends: batch and payload_type."""

    atomic: bool
    commit_every: int


class PullOptions(SharedOptions, total=False):
    """The options of `subscribe` and `asubscribe`, beside the group and the timeout."""

    payload_type: type[Any] | str | None


class OfOne(Protocol):
    """Decorates a function of one delivery."""

    def __call__(self, handler: OneByOne, /) -> OneByOne: ...


class OfSeveral(Protocol):
    """Decorates a function of a list of deliveries."""

    def __call__(self, handler: Together, /) -> Together: ...


class OfOneTyped(Protocol[Payload]):
    """Decorates a function of one delivery whose payload is an instance of a class."""

    def __call__(
        self, handler: Callable[[Delivery[Payload]], Returned], /
    ) -> Callable[[Delivery[Payload]], Returned]: ...


class OfSeveralTyped(Protocol[Payload]):
    """Decorates a function of a list of deliveries whose payloads are instances of a class."""

    def __call__(
        self, handler: Callable[[list[Delivery[Payload]]], Returned], /
    ) -> Callable[[list[Delivery[Payload]]], Returned]: ...
