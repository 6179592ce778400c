"""The form that overrides a group's active hours and limits, and sentences about what is overridden."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.core.active_hours import HOURS_LENGTH
from sqlqueue.core.flow import MOST_AT_ONCE, OPTIONS, checked_flow
from sqlqueue.models import ConsumerGroup

NAMES = {
    "active": gettext_lazy("Active hours"),
    "rate_limit": gettext_lazy("Rate limit"),
    "rate_limit_per_key": gettext_lazy("Rate limit of each key"),
    "concurrency_limit": gettext_lazy("Concurrency limit"),
    "concurrency_limit_per_key": gettext_lazy("Concurrency limit of each key"),
    "retry_budget": gettext_lazy("Retry budget"),
}


class FlowForm(forms.Form):
    """For each option a box that overrides what the group's consumers say, and the value to use instead; empty: no
    limit. An unticked box removes the override."""

    override_active = forms.BooleanField(label=gettext_lazy("Override the active hours"), required=False)
    active = forms.CharField(
        label=NAMES["active"],
        help_text=gettext_lazy("such as “mon-fri 22:00-06:00 Europe/Berlin”; empty: at all times"),
        max_length=HOURS_LENGTH,
        required=False,
    )

    override_rate_limit = forms.BooleanField(label=gettext_lazy("Override the rate limit"), required=False)
    rate_limit = forms.CharField(
        label=NAMES["rate_limit"],
        help_text=gettext_lazy("messages in a second, minute, hour or day, such as “100/m”; empty: no limit"),
        required=False,
    )
    override_rate_limit_per_key = forms.BooleanField(
        label=gettext_lazy("Override the rate limit of each key"), required=False
    )
    rate_limit_per_key = forms.CharField(
        label=NAMES["rate_limit_per_key"],
        help_text=gettext_lazy(
            "messages of one key in a second, minute, hour or day, such as “1/s”; empty: no limit. It holds for groups "
            "that keep the order of each key and take no batches"
        ),
        required=False,
    )
    override_concurrency_limit = forms.BooleanField(
        label=gettext_lazy("Override the concurrency limit"), required=False
    )
    concurrency_limit = forms.IntegerField(
        label=NAMES["concurrency_limit"],
        help_text=gettext_lazy("handlers that run at once, of all processes together; empty: no limit"),
        min_value=1,
        max_value=MOST_AT_ONCE,
        required=False,
    )
    override_concurrency_limit_per_key = forms.BooleanField(
        label=gettext_lazy("Override the concurrency limit of each key"), required=False
    )
    concurrency_limit_per_key = forms.IntegerField(
        label=NAMES["concurrency_limit_per_key"],
        help_text=gettext_lazy(
            "messages of one key that are in flight at once; empty: no limit. It holds for groups that keep no order, "
            "take no batches and share no partition"
        ),
        min_value=1,
        max_value=MOST_AT_ONCE,
        required=False,
    )
    override_retry_budget = forms.BooleanField(label=gettext_lazy("Override the retry budget"), required=False)
    retry_budget = forms.CharField(
        label=NAMES["retry_budget"],
        help_text=gettext_lazy("failures in a second, minute, hour or day, such as “20/m”; empty: no limit"),
        required=False,
    )

    def __init__(self, group: ConsumerGroup, data: Mapping[str, Any] | None = None):
        self.declared, self.present = options(group.flow), options(group.flow_overrides)
        current = {**self.declared, **self.present}
        super().__init__(data, initial={**current, **{f"override_{name}": name in self.present for name in OPTIONS}})
        for name in OPTIONS:
            text = _("Its consumers say: %(value)s") % {"value": as_text(self.declared.get(name))}
            self.fields[f"override_{name}"].help_text = text

    def clean(self) -> dict[str, Any]:
        """Refuse what cannot be."""
        for name, value in self.overrides.items():
            problems: list[str] = []
            checked_flow({name: value}, problems)
            for problem in problems:
                self.add_error(name, problem)
        return self.cleaned_data

    @property
    def overrides(self) -> dict[str, Any]:
        """The overridden options and their values; None: no limit."""
        chosen = [name for name in OPTIONS if self.cleaned_data.get(f"override_{name}")]
        return {name: self.cleaned_data.get(name) or None for name in chosen}


def options(text: str | None) -> dict[str, Any]:
    """Return options as they are stored."""
    return json.loads(text) if text else {}


def as_text(value: Any) -> str:
    """Return an option's value as a text."""
    return _("no limit") if value is None else str(value)


def flow_notes(group: ConsumerGroup) -> list[str]:
    """Return a sentence for each option of a group that is set, or overridden."""
    declared, overrides = options(group.flow), options(group.flow_overrides)
    notes = []
    for name in OPTIONS:
        values = {"option": NAMES[name], "now": as_text(overrides.get(name)), "value": as_text(declared.get(name))}
        if name in overrides:
            notes.append(_("%(option)s: %(now)s, overridden. Its consumers say: %(value)s.") % values)
        elif name in declared:
            notes.append(_("%(option)s: %(value)s.") % values)
    return notes


def changes(group: ConsumerGroup, overrides: Mapping[str, Any]) -> str:
    """Return sentences about what replacing a group's overrides changes; "" if nothing."""
    declared, before = options(group.flow), options(group.flow_overrides)
    sentences = []
    for name in OPTIONS:
        if (name in before, before.get(name)) == (name in overrides, overrides.get(name)):
            continue
        values = {
            "option": NAMES[name],
            "before": as_text({**declared, **before}.get(name)),
            "after": as_text({**declared, **overrides}.get(name)),
        }
        if name in overrides:
            sentences.append(_("%(option)s: %(before)s → %(after)s, overrides its consumers.") % values)
        else:
            sentences.append(_("%(option)s: %(before)s → %(after)s, as its consumers say.") % values)
    return " ".join(sentences)
