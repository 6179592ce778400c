"""Filters for the admin's templates: times with their zone, and the labels that cells have on narrow screens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst

from sqlqueue.stats import moments

register = template.Library()

CELL = re.compile(r"^<(td|th)\b")


@register.filter
def moment(at: datetime | None, fraction: bool = False) -> str:
    """Return a time in the current time zone, with the zone's name."""
    return moments.moment(at, fraction)


@register.filter
def labelled(row: Sequence[str], headers: Sequence[Mapping[str, Any]]) -> Iterator[SafeString]:
    """Yield the cells of a row of Django's list, each with its column's heading as `data-label`."""
    for cell, header in zip(row, headers):
        if "action-checkbox" in header.get("class_attrib", ""):
            yield mark_safe(cell)  # Django's own markup, as in the line below
            continue
        tag, rest = CELL.match(str(cell)), CELL.sub("", str(cell), count=1)
        assert tag is not None
        label = format_html(' data-label="{}"', capfirst(header["text"]))
        yield mark_safe(f"{tag[0]}{label}{rest}")
