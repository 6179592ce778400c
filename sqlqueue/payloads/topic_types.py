"""The payload type and the version of each topic, as SQLQUEUE["TOPICS"] names them, and reading a delivery's payload:
brought up to date, and made an instance of its type."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from sqlqueue.conf import settings
from sqlqueue.core.codec import decode
from sqlqueue.core.not_run import check_has_run
from sqlqueue.exceptions import ConfigurationError, PayloadMismatch, Settlement, Unknown
from sqlqueue.payloads.versions import VERSION, checked_upcasts

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


def type_of(topic: str) -> PayloadType | None:
    """Return the payload type of a topic; None if its payloads are any JSON. Raises ConfigurationError."""
    return payload_type(settings.reading.topics[topic].payload_type) if is_typed(topic) else None


def is_typed(topic: str) -> bool:
    """Tell whether TOPICS names a payload type for a topic; it is not imported."""
    named = settings.reading.topics.get(topic)
    return named is not None and named.payload_type is not None


def version_of(topic: str) -> int:
    """Return the version that a topic's messages are published with."""
    named = settings.reading.topics.get(topic)
    return 1 if named is None else named.payload_version


class PayloadReader:
    """How one consumer reads the payloads of its topic: by its own type, or by the topic's.

    Raises ConfigurationError for a type or upcasts that cannot be used.
    """

    def __init__(self, topic: str, given: Any = None, upcast: Any = None):
        self._topic = topic
        self._own: PayloadType | None = None if given is None else payload_type(given)
        self._upcasts = checked_upcasts(upcast, version_of(topic)) if upcast is not None else {}

    @property
    def kind(self) -> PayloadType | None:
        """The type that payloads are read as; None: as JSON has them."""
        return self._own or type_of(self._topic)

    @property
    def checks(self) -> bool:
        """It may find that a payload does not fit."""
        return bool(self._upcasts) or self._own is not None or is_typed(self._topic)

    def read(self, payload: Any, headers: Any, body: Any = None) -> Any:
        """Return the value of a stored payload. body: of a payload of bytes.

        Raises PayloadMismatch if it does not fit, or cannot be brought up to date: the message is a dead letter. Of a
        version that is newer than this process's it is Unknown, for another process may be able to read it.
        """
        kind = self.kind
        if kind is None and not self._upcasts:
            return decode(payload) if body is None else bytes(body)
        version, present = _version(headers), version_of(self._topic)
        older = bool(self._upcasts) and version < present
        value = payload if body is None else bytes(body)
        if older:
            value = self._brought_up(decode(payload) if body is None else value, version, present)
        made = older or body is not None  # it is no JSON text
        if kind is None:
            return value if made else decode(value)
        try:
            if kind.of_bytes != (made and isinstance(value, bytes)):
                what = "it is JSON" if kind.of_bytes else "it is bytes"
                raise PayloadMismatch(f"payload does not fit {kind.name}: {what}")
            if kind.of_bytes:
                return value
            # An upcast may return a str: that is a value, and no JSON text.
            return kind.convert(value) if older or not isinstance(value, (str, bytes)) else kind.decode(value)
        except PayloadMismatch as error:
            if version > present:
                raise Unknown(f"version {version} is newer than this consumer's {present}: {error}") from error
            raise PayloadMismatch(f"{error} (version {version})" if present > 1 else str(error)) from error

    def _brought_up(self, value: Any, version: int, present: int) -> Any:
        for older in range(version, present):
            function = self._upcasts.get(older)
            if function is None:
                first = min(self._upcasts)
                raise PayloadMismatch(
                    f"payload has version {version}, and upcast begins at {first}: name one for {older}"
                )
            try:
                value = function(value)
                check_has_run(value, f"upcast from {older}")
            except Settlement:
                raise
            except Exception as error:
                text = f"payload of version {version}: upcast from {older} raised {type(error).__name__}: {error}"
                raise PayloadMismatch(text) from error
        return value


def _version(headers: Any) -> int:
    found = decode(headers) if headers else None
    version = found.get(VERSION, 1) if isinstance(found, dict) else 1
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise PayloadMismatch(f"header {VERSION!r} must be a whole number from 1, not {version!r}")
    return version
