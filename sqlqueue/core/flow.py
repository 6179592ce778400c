"""Flow: when a group works and how much, as its consumer's options say, and as an operator has changed that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlqueue.core.active_hours import ActiveHours
from sqlqueue.core.bounds import whole
from sqlqueue.exceptions import ConfigurationError

T = TypeVar("T")


UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
MOST_OF_A_RATE: Final = 1_000_000_000
MOST_AT_ONCE: Final = 1_000_000  # handlers
RATE = re.compile(r"(\d{1,10})/([smhd])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in a unit of time, such as "100/m". Raises ConfigurationError for what cannot be read."""

    text: str

    def __post_init__(self) -> None:
        found = RATE.fullmatch(self.text) if isinstance(self.text, str) else None
        if found is None or not 1 <= int(found[1]) <= MOST_OF_A_RATE:
            raise ConfigurationError(
                f"{self.text!r:.80} cannot be read: write how many (1 to {MOST_OF_A_RATE:,}) in a "
                'second, minute, hour or day, such as "10/s", "100/m", "5000/h" or "1/d"'
            )

    @property
    def per_second(self) -> float:
        """So many a second."""
        return self.count / self.seconds

    @property
    def count(self) -> int:
        """The number before the unit."""
        return int(self.text.split("/")[0])

    @property
    def seconds(self) -> float:
        """The seconds of the unit."""
        return UNITS[self.text.split("/")[1]]


@dataclass(frozen=True, slots=True)
class Flow:
    """The options of a group that limit its work; None: no limit. active: when it works; rate: how many messages start
    in a time; concurrency: how many handlers run at once; budget: how many attempts may fail in a time before it tries
    one message at a time; rate_per_key: how many messages of one key start in a time; concurrency_per_key: how many of
    one key are in flight at once. Limits hold for all its processes together."""

    active: ActiveHours | None = None
    rate: Rate | None = None
    concurrency: int | None = None
    budget: Rate | None = None
    rate_per_key: Rate | None = None
    concurrency_per_key: int | None = None

    @property
    def shared(self) -> bool:
        """Whether its processes have to share something out; all messages of a key are with one of them."""
        return (self.rate, self.concurrency, self.budget) != (None, None, None)

    def as_dict(self) -> dict[str, Any]:
        """Return the options that are given, as JSON has them."""
        given = {option: getattr(self, name) for option, name in OPTIONS.items()}
        return {option: getattr(one, "text", one) for option, one in given.items() if one is not None}


NO_FLOW = Flow()
# The options as a user gives them, and the fields of a flow.
OPTIONS: Final = {
    "active": "active",
    "rate_limit": "rate",
    "rate_limit_per_key": "rate_per_key",
    "concurrency_limit": "concurrency",
    "concurrency_limit_per_key": "concurrency_per_key",
    "retry_budget": "budget",
}


def checked_flow(values: Mapping[str, Any], problems: list[str]) -> Flow:
    """Return the flow of options as a user gives them, None for what is not given; note what cannot be."""
    active = _made(ActiveHours, values, "active", problems)
    rate = _made(Rate, values, "rate_limit", problems)
    budget = _made(Rate, values, "retry_budget", problems)
    concurrency, of_key = values.get("concurrency_limit"), values.get("concurrency_limit_per_key")
    for name, given in (("concurrency_limit", concurrency), ("concurrency_limit_per_key", of_key)):
        if given is not None:
            whole(given, name, problems, MOST_AT_ONCE)
    return Flow(active, rate, concurrency, budget, _made(Rate, values, "rate_limit_per_key", problems), of_key)


def _made(make: Callable[[Any], T], values: Mapping[str, Any], name: str, problems: list[str]) -> T | None:
    try:
        return None if values.get(name) is None else make(values[name])
    except ConfigurationError as error:
        problems.append(f"{name}: {error}")
        return None


def stored(flow: Flow, lifted: Iterable[str] = ()) -> str:
    """Return the text that stores a flow; "" for one without limits. lifted: options that are to have no limit."""
    given = {**flow.as_dict(), **dict.fromkeys(lifted)}
    return json.dumps(given, sort_keys=True) if given else ""


def in_effect(declared: str | None, overrides: str | None) -> Flow:
    """Return the flow of a group from what its consumers have declared and what an operator has overridden, each as it
    is stored. Options that this version does not know are left out."""
    given = {**_options(declared), **_options(overrides)}
    return checked_flow(given, []) if given else NO_FLOW


def _options(text: str | None) -> dict[str, Any]:
    return {name: value for name, value in json.loads(text).items() if name in OPTIONS} if text else {}
