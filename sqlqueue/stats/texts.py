"""Durations, times and counts as texts for people, in the active language."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from sqlqueue.log.topic_options import FOR_EVER

MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """Return a length of time in its two greatest units, without the second where that is 0: 2 h 5 min, 7 d."""
    whole = round(seconds)
    if whole < MINUTE:
        return _("%(seconds)d s") % {"seconds": whole}
    if whole < HOUR:
        units = [_("%(minutes)d min"), _("%(seconds)d s")]
    elif whole < DAY:
        units = [_("%(hours)d h"), _("%(minutes)d min")]
    else:
        units = [_("%(days)d d"), _("%(hours)d h")]
    parts = {"days": whole // DAY, "hours": whole % DAY // HOUR, "minutes": whole % HOUR // MINUTE}
    figures = {**parts, "seconds": whole % MINUTE}
    texts = [unit % figures for unit in units]
    return " ".join(texts if not texts[1].startswith("0 ") else texts[:1])


def option_text(value: float | str | None) -> str:
    """Return the value of a topic's option as text; retention is in seconds, or None for ever."""
    if isinstance(value, str):
        return value
    return FOR_EVER if value is None else duration(value)


def about(count: int, estimated: bool) -> str:
    """Return a count as text, with ≈ before an estimate."""
    return ("≈ " if estimated else "") + number_format(count, force_grouping=True)


def at_least(count: int, more: bool) -> str:
    """Return a count as text; more: there are more."""
    return ("≥ " if more else "") + number_format(count, force_grouping=True)


def moment(at: datetime | None, fraction: bool = False) -> str:
    """Return a time in the current zone, which is named (2026-01-31 12:00:00 UTC); with milliseconds if asked; a dash
    for none."""
    if at is None:
        return "–"
    if timezone.is_naive(at):  # USE_TZ is off: in the site's zone
        at = timezone.make_aware(at, timezone.get_default_timezone())
    local = timezone.localtime(at)
    part = f".{local.microsecond // 1000:03}" if fraction else ""
    return f"{local:%Y-%m-%d %H:%M:%S}{part} {local:%Z}"
