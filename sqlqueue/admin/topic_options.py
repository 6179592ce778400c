"""The form that overrides the settings' options of a topic, and sentences about overridden and changed options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.conf import settings
from sqlqueue.core.bounds import CENTURY
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.settings import HISTORIES
from sqlqueue.log.topic_options import CHANGEABLE, Difference, differences
from sqlqueue.models import Topic
from sqlqueue.stats.texts import duration

NAMES = {"retention": gettext_lazy("Retention"), "history": gettext_lazy("History")}


class OptionsForm(forms.Form):
    """For each option a box that overrides the settings, and the value to use instead. An unticked box removes the
    override."""

    override_retention = forms.BooleanField(label=gettext_lazy("Override the settings' retention"), required=False)
    retention = forms.FloatField(
        label=NAMES["retention"],
        help_text=gettext_lazy("seconds; empty: for ever"),
        min_value=0,
        max_value=CENTURY,
        required=False,
    )
    override_history = forms.BooleanField(label=gettext_lazy("Override the settings' history"), required=False)
    history = forms.ChoiceField(
        label=NAMES["history"],
        help_text=gettext_lazy("which receipts are written"),
        choices=[(name, name) for name in HISTORIES],
        required=False,
    )

    def __init__(self, topic: Topic, data: Mapping[str, Any] | None = None):
        current = {name: getattr(topic, name) for name in CHANGEABLE}
        super().__init__(
            data, initial={**current, **{f"override_{name}": name in topic.overridden for name in CHANGEABLE}}
        )
        wanted = settings.topic(topic.name)
        for name in CHANGEABLE:
            text = _("The settings say: %(value)s") % {"value": as_text(getattr(wanted, name))}
            self.fields[f"override_{name}"].help_text = text
        if topic.name.endswith(DEAD_LETTER_SUFFIX):  # dead letters are kept until they are replayed or discarded
            del self.fields["override_retention"], self.fields["retention"]

    def clean(self) -> dict[str, Any]:
        """Refuse an override of the history without a value."""
        if self.cleaned_data.get("override_history") and not self.cleaned_data.get("history"):
            self.add_error("history", _("Choose one."))
        return self.cleaned_data

    @property
    def overrides(self) -> dict[str, Any]:
        """The overridden options and their values."""
        return {name: self.cleaned_data[name] for name in CHANGEABLE if self.cleaned_data.get(f"override_{name}")}


def as_text(value: Any) -> str:
    """Return an option's value as a text."""
    return _("for ever") if value is None else duration(value) if isinstance(value, float) else str(value)


def sentence(changed: Difference) -> str:
    """Return a sentence about the change of an option from `stored` to `wanted`."""
    before, after = as_text(changed.stored), as_text(changed.wanted)
    values = {"option": NAMES[changed.option], "before": before, "after": after}
    if changed.overridden:
        return _("%(option)s: %(before)s → %(after)s, overrides the settings.") % values
    return _("%(option)s: %(before)s → %(after)s, as the settings say.") % values


def option_notes(topic: Topic) -> list[str]:
    """Return a sentence for each option that is overridden, or that the settings will change."""
    wanted = settings.topic(topic.name)
    notes = []
    for option in topic.overridden:
        values = {
            "option": NAMES[option],
            "now": as_text(getattr(topic, option)),
            "value": as_text(getattr(wanted, option)),
        }
        notes.append(_("%(option)s is overridden: %(now)s. The settings say: %(value)s.") % values)
    for difference in differences(topic):
        if not difference.overridden:
            values = {
                "option": NAMES[difference.option],
                "now": as_text(difference.stored),
                "value": as_text(difference.wanted),
            }
            text = _("%(option)s is %(now)s. The settings say: %(value)s, from the next start of runconsumers on.")
            notes.append(text % values)
    return notes
