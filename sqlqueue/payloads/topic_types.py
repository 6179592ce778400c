"""The payload type and the version of each topic, as SQLQUEUE["TOPICS"] names them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.module_loading import import_string

from sqlqueue.conf import settings
from sqlqueue.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sqlqueue.payloads.payload_type import PayloadType


def payload_type(given: Any) -> PayloadType:
    """Return the payload type of a class, or of its dotted path. Raises ConfigurationError if there is none, if it
    cannot be used, and if msgspec is not installed."""
    try:
        return _built(given)
    except TypeError as error:  # a dict, for example: it cannot be looked up
        raise ConfigurationError(f"payload_type must be a class or its dotted path, not {given!r}") from error


@cache
def _built(given: Any) -> PayloadType:
    try:
        from sqlqueue.payloads.payload_type import PayloadType
    except ImportError as error:
        raise ConfigurationError(
            "payload_type needs msgspec, which is not installed: pip install sqlqueue[typed]"
        ) from error
    described = given
    if isinstance(given, str):
        try:
            described = import_string(given)
        except Exception as error:  # of the module that it stands in
            raise ConfigurationError(f"payload_type: {given!r} cannot be imported: {error!r}") from error
    return PayloadType(described)


class PublishedAs(NamedTuple):
    """What a topic's messages are published with. kind: None for any JSON."""

    kind: PayloadType | None
    version: int


UNTYPED = PublishedAs(None, 1)


def published_as(topic: str) -> PublishedAs:
    """Return the payload type and version that a topic's messages are published with. Raises ConfigurationError."""
    if not settings.names(topic):
        return UNTYPED
    options = settings.topic(topic)
    if options.payload_type is None and options.payload_version is None:
        return UNTYPED
    kind = type_of(topic)
    return PublishedAs(kind, version_of(topic, kind))


def type_of(topic: str) -> PayloadType | None:
    """Return the payload type of a topic; None if its payloads are any JSON. Raises ConfigurationError."""
    return payload_type(settings.topic(topic).payload_type) if is_typed(topic) else None


def is_typed(topic: str) -> bool:
    """Tell whether TOPICS names a payload type for a topic; it is not imported."""
    return settings.names(topic) and settings.topic(topic).payload_type is not None


def version_of(topic: str, kind: PayloadType | None = None) -> int:
    """Return the version that a topic's messages are published with: the topic's option `payload_version`, or what the
    type names, or 1. kind: of a consumer that has a type of its own."""
    named = settings.topic(topic).payload_version if settings.names(topic) else None
    if named is not None:
        return int(named)
    kind = kind or type_of(topic)
    return 1 if kind is None else kind.version
