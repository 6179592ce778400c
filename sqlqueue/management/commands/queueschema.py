"""Write what the topics' payloads look like, for other teams and other languages."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.core.keys import did_you_mean
from sqlqueue.management.base import QueueCommand
from sqlqueue.payloads.topic_types import type_of, version_of

if TYPE_CHECKING:
    from sqlqueue.payloads.payload_type import PayloadType

SCHEMA = "https://json-schema.org/draft/2020-12/schema"


class Command(QueueCommand):
    """Reads the settings and the consumers' modules; needs no database."""

    home_database = ("",)
    help = "Print the JSON Schema of each topic that has a payload type."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the argument."""
        parser.add_argument("topics", nargs="*", metavar="topic", help="only these; one alone is printed by itself")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them."""
        registry.discover()
        types = _payload_types()
        names = options["topics"] or [name for name, kind in types.items() if kind is not None]
        if not names:
            raise CommandError(
                "no topic has a payload type: name one in SQLQUEUE['TOPICS'][topic]['payload_type'], or in "
                "@consumer(topic, payload_type=…)"
            )
        schemas = {name: _schema(name, types) for name in names}
        self.as_json(schemas[names[0]] if len(options["topics"]) == 1 else schemas)


def _payload_types() -> dict[str, PayloadType | None]:
    """Return the payload type of each topic of the settings or of a consumer, or of its first consumer that has one."""
    consumers = sorted(registry.consumers.values(), key=lambda consumer: consumer.group)
    found = {}
    for name in sorted({*settings.TOPICS, *(consumer.topic for consumer in consumers)}):
        read = [each.payloads.kind for each in consumers if each.topic == name and each.payloads is not None]
        found[name] = next((kind for kind in (type_of(name), *read) if kind is not None), None)
    return found


def _schema(name: str, types: dict[str, PayloadType | None]) -> dict[str, Any]:
    if name not in types:
        raise CommandError(f"no topic {name!r} in SQLQUEUE['TOPICS'] or of a @consumer.{did_you_mean(name, types)}")
    kind = types[name]
    if kind is None:
        raise CommandError(f"topic {name!r} has no payload type: name one in SQLQUEUE['TOPICS'][{name!r}]")
    return {"$schema": SCHEMA, **kind.schema(), "title": name, "x-payload-version": version_of(name)}
