"""Options that an operator overrides, of a topic or of a group: the form, and sentences about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext as _


@dataclass(frozen=True)
class Options:
    """What can be overridden.

    fields: a form field for each option, by its name
    declared: the values that hold without overrides, as far as there are any
    overrides: the values that hold instead
    who: who declares them, as a text
    as_text: returns a value as a text
    """

    fields: Mapping[str, forms.Field]
    declared: Mapping[str, Any]
    overrides: Mapping[str, Any]
    who: str | Promise
    as_text: Any

    def overridden_notes(self) -> list[str]:
        """Return a sentence for each option that is overridden."""
        text = _("%(option)s: %(now)s, overridden. %(who)s: %(value)s.")
        return [
            text
            % {
                "option": field.label,
                "now": self.as_text(self.overrides[name]),
                "who": self.who,
                "value": self.as_text(self.declared.get(name)),
            }
            for name, field in self.fields.items()
            if name in self.overrides
        ]

    def declared_notes(self) -> list[str]:
        """Return a sentence for each option that is declared, and not overridden."""
        text = _("%(option)s: %(value)s.")
        return [
            text % {"option": field.label, "value": self.as_text(self.declared[name])}
            for name, field in self.fields.items()
            if name in self.declared and name not in self.overrides
        ]


class OverrideForm(forms.Form):
    """For each option a box that overrides what is declared, and the value to use instead. An unticked box removes the
    override."""

    def __init__(self, options: Options, data: Mapping[str, Any] | None = None):
        ticked = {f"override_{name}": name in options.overrides for name in options.fields}
        super().__init__(data, initial={**options.declared, **options.overrides, **ticked})
        self.options = options
        for name, field in options.fields.items():
            values = {"who": options.who, "value": options.as_text(options.declared.get(name))}
            self.fields[f"override_{name}"] = forms.BooleanField(
                label=_("Override: %(option)s") % {"option": field.label},
                help_text=_("%(who)s: %(value)s") % values,
                required=False,
            )
            self.fields[name] = field

    @property
    def overrides(self) -> dict[str, Any]:
        """The overridden options and their values; None for an empty one."""
        given = self.cleaned_data
        chosen = [name for name in self.options.fields if given.get(f"override_{name}")]
        return {name: None if given.get(name) == "" else given.get(name) for name in chosen}

    @property
    def changes(self) -> str:
        """Sentences about what the form changes; "" for nothing."""
        declared, before, after = self.options.declared, self.options.overrides, self.overrides
        sentences = []
        for name, field in self.options.fields.items():
            if (name in before, before.get(name)) == (name in after, after.get(name)):
                continue
            values = {
                "option": field.label,
                "before": self.options.as_text({**declared, **before}.get(name)),
                "after": self.options.as_text({**declared, **after}.get(name)),
            }
            if name in after:
                sentences.append(_("%(option)s: %(before)s → %(after)s, overridden.") % values)
            else:
                sentences.append(_("%(option)s: %(before)s → %(after)s, as declared.") % values)
        return " ".join(sentences)
