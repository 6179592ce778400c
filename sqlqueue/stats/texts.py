"""Durations and counts as texts for people, in the active language."""

from __future__ import annotations

from django.utils.formats import number_format
from django.utils.translation import gettext as _

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


def about(count: int, estimated: bool) -> str:
    """Return a count as text, with ≈ before an estimate."""
    return ("≈ " if estimated else "") + number_format(count, force_grouping=True)


def at_least(count: int, more: bool) -> str:
    """Return a count as text; more: there are more."""
    return ("≥ " if more else "") + number_format(count, force_grouping=True)
