"""One payload type: how its instances become JSON, and how JSON becomes an instance or is refused.

Needs msgspec (the extra `typed`). It knows dataclasses, TypedDicts, attrs classes and its own Structs; pydantic models,
also as fields of those, are left to pydantic.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from sqlqueue.exceptions import ConfigurationError, PayloadMismatch

REFERENCE = "#/$defs/{name}"


class PayloadType:
    """A type that payloads have. name: for people; of_bytes: payloads are bytes, as they are, and no JSON.

    Raises ConfigurationError for what no payload can be checked against.
    """

    def __init__(self, described: Any):
        self.described, self.of_bytes = described, described is bytes
        self.name = str(getattr(described, "__qualname__", described))
        try:
            if hasattr(described, "__pydantic_validator__") and not _is_model(described):
                raise TypeError("its validators would not be run: make it a plain dataclass or a pydantic.BaseModel")
            self._decoder = msgspec.json.Decoder(described, dec_hook=_from_json)
            self.schema()  # which looks at all fields
        except Exception as error:  # of annotations, too, that name what is not there
            reason = str(error).partition("\n")[0] or type(error).__name__
            if "schema for custom types" in reason:
                reason = str(error).rpartition("\n")[2]
            raise ConfigurationError(
                f"payload_type {self.name} cannot be used: {reason}. Give a dataclass, a TypedDict, an attrs class, a "
                "msgspec.Struct or a pydantic model, whose fields are such, or what JSON has"
            ) from error

    def plain(self, value: Any, other: Callable[[Any], str]) -> Any:
        """Return what JSON knows of a value, instances at any depth among it. other: writes as JSON text what neither
        msgspec nor pydantic knows."""

        def hook(found: Any) -> Any:
            return found.model_dump(mode="json", by_alias=True) if _is_model(type(found)) else json.loads(other(found))

        try:
            return msgspec.to_builtins(value, enc_hook=hook, str_keys=True)
        except (msgspec.MsgspecError, TypeError, AttributeError, RecursionError) as error:
            raise PayloadMismatch(f"payload does not fit {self.name}: {error}") from None

    def decode(self, text: str | bytes) -> Any:
        """Return the instance that a JSON text stands for. Raises PayloadMismatch."""
        return self._checked(self._decoder.decode, text)

    def convert(self, value: Any) -> Any:
        """Return the instance that a value as JSON has it stands for. Raises PayloadMismatch."""
        return self._checked(
            lambda value: msgspec.convert(value, self.described, dec_hook=_from_json, str_keys=True), value
        )

    def _checked(self, make: Callable[[Any], Any], given: Any) -> Any:
        try:
            return make(given)
        except msgspec.MsgspecError as error:  # its paths begin with `$`
            text = (
                str(error).replace(" - at `$", " - at `payload").replace(" - at `key` in `$", " - at `key` in `payload")
            )
            raise PayloadMismatch(f"payload does not fit {self.name}: {text}") from None
        except Exception as error:  # of the type's own code
            text = f"{type(error).__name__}: {error}"
            raise PayloadMismatch(f"payload does not fit {self.name}: its own code raised {text}") from error

    def schema(self, reference: str = REFERENCE) -> dict[str, Any]:
        """Return its JSON Schema (2020-12), the types of its fields under `$defs`. reference: where a `name` of them
        is referred to."""
        inner: dict[str, Any] = {}

        def hook(found: type) -> dict[str, Any]:
            if not _is_model(found):
                raise NotImplementedError
            made: dict[str, Any] = found.model_json_schema(  # type: ignore[attr-defined]
                ref_template=reference.replace("{name}", "{model}")
            )
            inner.update(made.pop("$defs", {}))
            return made

        (schema,), types = msgspec.json.schema_components([self.described], schema_hook=hook, ref_template=reference)
        definitions = {**inner, **types}
        return {**schema, "$defs": definitions} if definitions else dict(schema)


def _from_json(kind: type, value: Any) -> Any:
    if not _is_model(kind):
        raise NotImplementedError
    try:
        # Not model_validate: strict models take a date's text from JSON only.
        return kind.model_validate_json(json.dumps(value))  # type: ignore[attr-defined]
    except ValueError as error:
        listed = getattr(error, "errors", None)
        if listed is None:
            raise
        raise ValueError("; ".join(f"{_path(one['loc'])}{one['msg']}" for one in listed())) from None


def _path(steps: tuple[int | str, ...]) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return f"{path.removeprefix('.')}: " if path else ""


def _is_model(kind: Any) -> bool:
    """Tell whether it is a pydantic model, without pydantic."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")
