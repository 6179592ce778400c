"""The project's topics as documents that other programs read: JSON Schema (2020-12) and AsyncAPI 3."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import Consumer, registry
from sqlqueue.payloads.content_types import UNKNOWN
from sqlqueue.payloads.topic_types import type_of, version_of
from sqlqueue.payloads.versions import VERSION

if TYPE_CHECKING:
    from sqlqueue.payloads.payload_type import PayloadType

SCHEMA = "https://json-schema.org/draft/2020-12/schema"


class DocumentedTopic(NamedTuple):
    """A topic of the settings or of a consumer. kind: the topic's payload type, or that of its first consumer that has
    one; None: any JSON."""

    name: str
    kind: PayloadType | None
    version: int
    consumers: list[Consumer]


def documented_topics() -> list[DocumentedTopic]:
    """Return the topics that the settings name, and those of the registered consumers, by name."""
    consumers = list(registry.consumers.values())
    found = []
    for name in sorted({*settings.TOPICS, *(consumer.topic for consumer in consumers)}):
        own = sorted((each for each in consumers if each.topic == name), key=lambda each: each.group)
        kinds = [type_of(name), *(each.payloads.kind for each in own if each.payloads is not None)]
        kind = next((kind for kind in kinds if kind is not None), None)
        found.append(DocumentedTopic(name, kind, version_of(name, kind), own))
    return found


def json_schema(topic: DocumentedTopic) -> dict[str, Any]:
    """Return the JSON Schema of a topic's payloads."""
    assert topic.kind is not None
    named = {"title": topic.name, "x-payload-version": topic.version}
    return {"$schema": SCHEMA, **topic.kind.schema(), **named}


def asyncapi(topics: list[DocumentedTopic], title: str, version: str) -> dict[str, Any]:
    """Return an AsyncAPI 3.0 document: a channel for each topic, an operation for each consumer. title, version: of
    the document."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for topic in topics:
        component = component_name(topic.name, channels)
        channels[component] = {
            "address": topic.name,
            "messages": {component: {"$ref": f"#/components/messages/{component}"}},
        }
        payload: dict[str, Any] = {}
        if topic.kind is not None:
            payload = topic.kind.schema(f"#/components/schemas/{component}.{{name}}")
            schemas |= {f"{component}.{name}": schema for name, schema in payload.pop("$defs", {}).items()}
        version_header = {"type": "integer", "const": topic.version}
        messages[component] = {"name": topic.name, "contentType": _content_type(topic.kind), "payload": payload}
        if topic.version > 1:
            messages[component]["headers"] = {"type": "object", "properties": {VERSION: version_header}}
        for consumer in topic.consumers:
            operations[component_name(f"{consumer.group}.{component}", operations)] = {
                "action": "receive",
                "channel": {"$ref": f"#/channels/{component}"},
                "summary": f"{consumer.name} for group {consumer.group}",
            }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    }


def component_name(name: str, taken: Container[str]) -> str:
    """Return a name for a component or a file, which is not among those that are taken: it has letters, digits, dots,
    hyphens and underscores only."""
    component = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    while component in taken:
        component += "_"
    return component


def _content_type(kind: PayloadType | None) -> str:
    return UNKNOWN if kind is not None and kind.of_bytes else "application/json"
