"""Seconds, in words that people read."""

from __future__ import annotations

from django.utils.translation import gettext as _

MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """Return a length of time in its two greatest units: 2 h 5 min."""
    whole = round(seconds)
    if whole < MINUTE:
        return _("%(seconds)d s") % {"seconds": whole}
    if whole < HOUR:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": whole // MINUTE, "seconds": whole % MINUTE}
    if whole < DAY:
        return _("%(hours)d h %(minutes)d min") % {"hours": whole // HOUR, "minutes": whole % HOUR // MINUTE}
    return _("%(days)d d %(hours)d h") % {"days": whole // DAY, "hours": whole % DAY // HOUR}
