"""Form fields for times, as the browser's own field for a date and a time of day asks for them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from django import forms
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware


class MomentField(forms.DateTimeField):
    """A time in the site's time zone. Its value is aware, also with USE_TZ = False."""

    widget = forms.DateTimeInput({"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")

    def to_python(self, value: Any) -> datetime | None:
        """Return the time; None for an empty field."""
        at = super().to_python(value)
        if at is None or not is_naive(at):
            return at
        try:
            return make_aware(at)
        except OverflowError:  # at an end of the calendar
            return at.replace(tzinfo=timezone.utc)


class StoredMomentField(MomentField):
    """A stored time that users may change.

    The field shows no zone, so in the hour that is repeated when clocks are set back its text stands for two times. A
    text that the user has not changed means the stored time.
    """

    stored: datetime | None = None  # in the site's zone

    def to_python(self, value: Any) -> datetime | None:
        """Return the time; None for an empty field."""
        if self.stored is not None and isinstance(value, str) and _parsed(value) == self.stored.replace(tzinfo=None):
            return self.stored
        return super().to_python(value)


def _parsed(text: str) -> datetime | None:
    try:
        return parse_datetime(text.strip())
    except ValueError:
        return None
