"""Options that an operator overrides, of a topic or of a group: the operation, and sentences about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.operation import Operation, Text


class Override(Operation):
    """For each option a box that overrides what is declared, and the value to use instead. An unticked box removes the
    override."""

    several = False
    who: ClassVar[Text]  # declares them, as a text

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.options, self.declared, self.before = self.read()
        self.initial = {**self.declared, **self.before}
        for name, field in self.options.items():
            self.fields[f"override_{name}"] = forms.BooleanField(
                label=_("Override: %(option)s") % {"option": field.label},
                help_text=_("%(who)s: %(value)s") % {"who": self.who, "value": self.as_text(self.declared.get(name))},
                required=False,
                initial=name in self.before,
            )
            self.fields[name] = field

    def read(self) -> tuple[Mapping[str, forms.Field], Mapping[str, Any], Mapping[str, Any]]:
        """Return a form field for each option of the row, the values that hold without overrides, as far as there are
        any, and those that hold instead."""
        raise NotImplementedError

    def as_text(self, value: Any) -> str:
        """Return a value of an option as a text."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Return a sentence for each option that is overridden."""
        text = _("%(option)s: %(now)s, overridden. %(who)s: %(value)s.")
        return [
            text
            % {
                "option": field.label,
                "now": self.as_text(self.before[name]),
                "who": self.who,
                "value": self.as_text(self.declared.get(name)),
            }
            for name, field in self.options.items()
            if name in self.before
        ]

    @property
    def overrides(self) -> dict[str, Any]:
        """The overridden options and their values; None for an empty one."""
        given = self.cleaned_data
        chosen = [name for name in self.options if given.get(f"override_{name}")]
        return {name: None if given.get(name) == "" else given.get(name) for name in chosen}

    @property
    def changes(self) -> str:
        """Sentences about what the form changes; "" for nothing."""
        before, after = {**self.declared, **self.before}, {**self.declared, **self.overrides}
        sentences = []
        for name, field in self.options.items():
            ticked = name in self.overrides
            if (name in self.before, before.get(name)) == (ticked, after.get(name)):
                continue
            values = {
                "option": field.label,
                "before": self.as_text(before.get(name)),
                "after": self.as_text(after.get(name)),
            }
            if ticked:
                sentences.append(_("%(option)s: %(before)s → %(after)s, overridden.") % values)
            else:
                sentences.append(_("%(option)s: %(before)s → %(after)s, as declared.") % values)
        return " ".join(sentences)
