"""Times that people type."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from django import forms
from django.utils.timezone import is_naive, make_aware


class MomentField(forms.DateTimeField):
    """A time in the site's zone, aware of it also where USE_TZ is off."""

    def to_python(self, value: Any) -> datetime | None:
        """Return it, None if it is empty."""
        at = super().to_python(value)
        if at is None or not is_naive(at):
            return at
        try:
            return make_aware(at)
        except OverflowError:  # at an end of the calendar
            return at.replace(tzinfo=timezone.utc)
