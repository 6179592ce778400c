"""The version and the content type that a message's payload has, in headers; and the functions that bring an older one
up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlqueue.core.effects import APPS
from sqlqueue.core.not_run import is_async, is_generator
from sqlqueue.core.relay import HEADER as RELAY
from sqlqueue.core.replies import REPLY
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

RESERVED = "sqlqueue-"
VERSION = f"{RESERVED}version"
CONTENT_TYPE = f"{RESERVED}content-type"
OF_PAYLOAD = frozenset({VERSION, CONTENT_TYPE})
OWN = OF_PAYLOAD | {RELAY, REPLY, *APPS}  # the headers that the queue and its apps add

Upcasts = Mapping[int, Callable[[Any], Any]]


def with_own(
    headers: Any,
    version: int,
    content_type: str | None = None,
    of_app: Mapping[str, Any] | None = None,
    reply_kept: float | None = None,
) -> Any:
    """Return a message's headers with the version and the content type of its payload, those of the app that publishes
    it, and for how many seconds the reply to it is stored; version 1 is not written. Raises InvalidMessage if the
    caller's own have names that are the queue's."""
    if headers and isinstance(headers, dict):
        refuse_reserved(headers)
    plain = version == 1 and content_type is None and of_app is None and reply_kept is None
    if plain or not (headers is None or isinstance(headers, dict)):
        return headers
    own = {VERSION: None if version == 1 else version, CONTENT_TYPE: content_type, REPLY: reply_kept}
    return {**(headers or {}), **{name: value for name, value in own.items() if value is not None}, **(of_app or {})}


def refuse_reserved(names: Iterable[object]) -> None:
    """Raise InvalidMessage if one of these names of headers is the queue's."""
    for name in names:
        if isinstance(name, str) and name.lower().startswith(RESERVED):
            raise InvalidMessage(
                f"headers: {name!r} begins with {RESERVED!r}, which is for the queue's own: use another name"
            )


def corrected(headers: Any, stored: Mapping[str, Any] | None) -> Any:
    """Return the headers that a person gives to a stored message, with those of the queue's own that it has. Raises
    InvalidMessage if they have one that it does not have so."""
    if headers is not None and not isinstance(headers, dict):
        return headers  # what encodes them says so
    own = {name: value for name, value in (stored or {}).items() if name in OWN}
    refuse_reserved(name for name, value in (headers or {}).items() if name not in own or own[name] != value)
    return {**(headers or {}), **own} or headers


def callers(headers: dict[str, Any]) -> dict[str, Any]:
    """Return a message's headers without those that the queue added, so that they may be published again."""
    return headers if OWN.isdisjoint(headers) else {name: headers[name] for name in headers if name not in OWN}


def added(headers: dict[str, Any]) -> dict[str, Any]:
    """Return those of a message's headers that the queue and its apps have added."""
    return {name: headers[name] for name in headers if name in OWN}


def checked_upcasts(given: Any, version: int) -> Upcasts:
    """Return what `upcast` names: for each older version, without a gap up to the one before the present, a function.
    Raises ConfigurationError for anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(f"upcast must be a dict of versions to functions ({{1: from_v1}}), not {given!r}")
    for older, function in given.items():
        if isinstance(older, bool) or not isinstance(older, int) or older < 1:
            raise ConfigurationError(f"upcast must have whole numbers from 1 as its versions, not {older!r}")
        if not callable(function):
            raise ConfigurationError(f"upcast must name a function for version {older}, not {function!r}")
        if is_async(function) or is_generator(function):
            raise ConfigurationError(f"upcast must name a plain function for version {older}, not {function!r}")
    if max(given) >= version:
        raise ConfigurationError(
            f"upcast must end before the present version, which is {version}: raise 'payload_version' of the topic in "
            f"SQLQUEUE['TOPICS'], or of the payload type, to {max(given) + 1}"
        )
    if missing := set(range(min(given), version)) - set(given):
        raise ConfigurationError(f"upcast must have every version up to {version - 1}: {min(missing)} is missing")
    return dict(given)
