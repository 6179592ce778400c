"""What is known of payloads of bytes without reading them."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db import models
from django.db.models.functions import Length

from sqlqueue.database.log import Log
from sqlqueue.payloads.content_types import content_type_of


class Body(NamedTuple):
    """The content type of a message of bytes, and how many there are."""

    content_type: str
    size: int


def bodies(log: Log, model: type[models.Model], keys: list[Any]) -> dict[Any, Body]:
    """Return what is known of the bytes of these messages, or scheduled messages, by their primary keys, without those
    of JSON. One statement."""
    rows = model._default_manager.using(log.alias).filter(pk__in=keys).exclude(body=None)
    found = rows.annotate(size=Length("body")).values_list("pk", "headers", "size")
    return {key: Body(content_type_of(headers), size) for key, headers, size in found}
