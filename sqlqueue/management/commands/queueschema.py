"""Write what the topics' payloads look like, for other teams and other languages."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.consumers.registry import registry
from sqlqueue.core.keys import did_you_mean
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.documented_topics import (
    DocumentedTopic,
    asyncapi,
    component_name,
    documented_topics,
    json_schema,
)


class Command(QueueCommand):
    """Reads the settings and the consumers' modules; needs no database."""

    home_database = ("",)
    help = "Print the JSON Schema of each topic that has a payload type, or AsyncAPI 3 of the whole project."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("topics", nargs="*", metavar="topic", help="only these; one alone is printed by itself")
        parser.add_argument("--asyncapi", action="store_true", help="print an AsyncAPI 3 document, in JSON")
        parser.add_argument("--title", help="of the AsyncAPI document (default: the settings module's package)")
        parser.add_argument("--api-version", default="0.0.0", help="of the AsyncAPI document (default: 0.0.0)")
        parser.add_argument("--output", metavar="FOLDER", help="write TOPIC.json, or asyncapi.json, into this folder")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write them."""
        registry.discover()
        topics = _chosen(documented_topics(), options["topics"])
        if options["asyncapi"]:
            title = options["title"] or os.environ.get("DJANGO_SETTINGS_MODULE", "sqlqueue").partition(".")[0]
            documents = {"asyncapi": asyncapi(topics, title, options["api_version"])}
        else:
            documents = {topic.name: json_schema(topic) for topic in topics if topic.kind is not None}
            if not documents:
                raise CommandError(
                    "no topic has a payload type: name one in SQLQUEUE['TOPICS'][topic]['payload_type'], or in "
                    "@consumer(topic, payload_type=…)"
                )
        if options["output"]:
            self._write(Path(options["output"]), documents)
        elif options["asyncapi"] or (len(options["topics"]) == 1 and len(documents) == 1):
            self.as_json(next(iter(documents.values())))
        else:
            self.as_json(documents)

    def _write(self, folder: Path, documents: dict[str, dict[str, Any]]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names: set[str] = set()
            for name, document in documents.items():
                component = component_name(name, names)
                names.add(component)
                path = folder / f"{component}.json"
                path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
                self.say(f"Wrote {path}.")
        except OSError as error:
            raise CommandError(f"{folder} cannot be written to: {error.strerror}") from error


def _chosen(topics: list[DocumentedTopic], names: list[str]) -> list[DocumentedTopic]:
    known = {topic.name: topic for topic in topics}
    for name in names:
        if name not in known:
            raise CommandError(f"no topic {name!r} in SQLQUEUE['TOPICS'] or of a @consumer.{did_you_mean(name, known)}")
        if known[name].kind is None:
            raise CommandError(f"topic {name!r} has no payload type: name one in SQLQUEUE['TOPICS'][{name!r}]")
    return [known[name] for name in dict.fromkeys(names)] if names else topics
