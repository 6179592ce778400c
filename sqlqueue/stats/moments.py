"""Times as text for people: 2026-01-31 12:00:00 UTC."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone


def moment(at: datetime | None, fraction: bool = False) -> str:
    """Return a time in the current zone, which is named; with milliseconds if asked; a dash for none."""
    if at is None:
        return "–"
    if timezone.is_naive(at):  # USE_TZ is off: in the site's zone
        at = timezone.make_aware(at, timezone.get_default_timezone())
    local = timezone.localtime(at)
    part = f".{local.microsecond // 1000:03}" if fraction else ""
    return f"{local:%Y-%m-%d %H:%M:%S}{part} {local:%Z}"
