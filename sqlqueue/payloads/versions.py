"""The headers of the queue's own: the version and the content type of a payload; and the functions that bring an older
version up to date."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlqueue.core.effects import APPS
from sqlqueue.core.new_message import REPLY
from sqlqueue.core.not_run import is_async, is_generator
from sqlqueue.core.relay import HEADER as RELAY
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

RESERVED = "sqlqueue-"
VERSION = f"{RESERVED}version"
CONTENT_TYPE = f"{RESERVED}content-type"
OF_PAYLOAD = frozenset({VERSION, CONTENT_TYPE})
OWN = OF_PAYLOAD | {RELAY, REPLY, *APPS}  # the headers that the queue and its apps add

Upcasts = Mapping[int, Callable[[Any], Any]]
UNKNOWN = "application/octet-stream"
CONTENT_TYPE_LENGTH = 255
TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
MEDIA_TYPE = re.compile(rf'{TOKEN}/{TOKEN}(?:[ \t]*;[ \t]*{TOKEN}=(?:{TOKEN}|"[ !#-\[\]-~]*"))*')


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
        plain = callable(function) and not is_async(function) and not is_generator(function)
        if isinstance(older, bool) or not isinstance(older, int) or older < 1 or not plain:
            raise ConfigurationError(
                f"upcast must name plain functions for whole numbers from 1, not {function!r} for {older!r}"
            )
    if max(given) >= version:
        raise ConfigurationError(
            f"upcast must end before the present version, which is {version}: raise 'payload_version' of the topic in "
            f"SQLQUEUE['TOPICS'] to {max(given) + 1}"
        )
    if missing := set(range(min(given), version)) - set(given):
        raise ConfigurationError(f"upcast must have every version up to {version - 1}: {min(missing)} is missing")
    return dict(given)


# RFC 9110, section 8.3.1: type/subtype, and parameters.


def checked_content_type(given: Any) -> str:
    """Return a content type, or refuse it."""
    if not isinstance(given, str) or not MEDIA_TYPE.fullmatch(given):
        raise InvalidMessage(f"content_type must be like 'application/pdf' or 'text/csv; charset=utf-8', not {given!r}")
    if len(given) > CONTENT_TYPE_LENGTH:
        raise InvalidMessage(f"content_type has {len(given)} characters; {CONTENT_TYPE_LENGTH} is the most")
    return given


def content_type_of(headers: Any) -> str:
    """Return the content type of a message of bytes with these headers, or with those of this JSON text. Plain SQL may
    have written anything there."""
    if isinstance(headers, str):
        try:
            headers = json.loads(headers)
        except (ValueError, RecursionError):
            return UNKNOWN
    found = headers.get(CONTENT_TYPE) if isinstance(headers, dict) else None
    return found if isinstance(found, str) and MEDIA_TYPE.fullmatch(found) else UNKNOWN
