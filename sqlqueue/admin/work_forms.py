"""The forms of a work item's page. That of the decision has the fields of a payload type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.times import MomentField
from sqlqueue.admin.work_permissions import REVIEW, WORK, user_named
from sqlqueue.conf import settings
from sqlqueue.exceptions import ConfigurationError, PayloadMismatch
from sqlqueue.models import WorkItem
from sqlqueue.models.work_item import USER_LENGTH
from sqlqueue.operations.work import COMMENT_LENGTH
from sqlqueue.payloads.topic_types import type_of

PREFIX = "field-"  # of the names of a payload type's fields: they may be called as the form's own
WHOLE = "payload"  # the field for a decision that no payload type describes


class UserField(forms.CharField):
    """The name of a user who has one of these permissions for the item's topic."""

    def __init__(self, item: WorkItem, codenames: tuple[str, ...], **options: Any) -> None:
        super().__init__(max_length=USER_LENGTH, **options)
        self._item, self._codenames = item, codenames

    def clean(self, value: Any) -> str:
        """Return the name. Raises ValidationError for a user who is not there, or may not do it."""
        name: str = super().clean(value)
        if name and user_named(name, self._item.topic, *self._codenames) is None:
            raise ValidationError(_("There is no user %(name)s who may do this.") % {"name": name})
        return name


class JSONTextField(forms.JSONField):
    """JSON in a text area; an empty one is None."""

    widget = forms.Textarea({"rows": 8})

    def prepare_value(self, value: Any) -> Any:
        """Return the text to show, indented."""
        if isinstance(value, (str, forms.fields.InvalidJSONInput)):  # what was typed
            return value if isinstance(value, forms.fields.InvalidJSONInput) else json.dumps(value, ensure_ascii=False)
        return json.dumps(value, indent=2, ensure_ascii=False)


class _WithComment(forms.Form):
    comment = forms.CharField(
        label=gettext_lazy("Comment"),
        max_length=COMMENT_LENGTH,
        required=False,
        widget=forms.Textarea({"rows": 3}),
    )


class CommentForm(_WithComment):
    """A comment that is needed: alone, or why a result is sent back."""

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, auto_id="comment_%s")
        self.fields["comment"].required = True


class ReviewForm(_WithComment):
    """A review; to send a result back needs a comment."""

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, auto_id="review_%s")


class TakeForm(_WithComment):
    """To take an item, or to release it."""

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, auto_id="take_%s")


class AssignForm(_WithComment):
    """To give an item, or its review, to another user."""

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, auto_id="assign_%s")
        codenames = (REVIEW,) if item.state == "review" else (WORK,)
        user = UserField(item, codenames, label=gettext_lazy("User"), help_text=gettext_lazy("The user's name."))
        self.fields = {"user": user, **self.fields}


class LaterForm(_WithComment):
    """Until when an item is put off."""

    until = MomentField(
        label=gettext_lazy("Until"),
        help_text=gettext_lazy("in this site's time zone"),
        widget=forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    field_order = ("until", "comment")

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, auto_id="later_%s")


class DecisionForm(_WithComment):
    """What is decided. Its fields are those of the payload type of the topic of decisions, or else of the item's own
    topic; without one it is JSON. It begins with the payload, over which go the values that the handler has filled in,
    or with what was submitted last."""

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, auto_id="decision_%s")
        self._kind = _type(item)
        values = _values(item)
        own: dict[str, forms.Field] = dict(_fields(self._kind.schema())) if self._kind is not None else {}
        self._names = list(own)
        if own:
            for name, field in own.items():
                if name in values:
                    field.initial = values[name]
        else:
            start = item.result if item.result is not None else values or item.payload
            own[WHOLE] = JSONTextField(label=gettext_lazy("Decision"), initial=start, required=False)
        reviewer = UserField(
            item,
            (REVIEW,),
            label=gettext_lazy("Reviewer"),
            required=False,
            help_text=gettext_lazy("Whom to ask for a review; empty: any reviewer."),
        )
        named = {PREFIX + name if name != WHOLE or self._names else name: field for name, field in own.items()}
        self.fields = {**named, "reviewer": reviewer, **self.fields}

    def clean(self) -> dict[str, Any]:
        """Refuse what does not fit the payload type."""
        cleaned = super().clean() or self.cleaned_data
        if self._kind is not None and self._names and not self.errors:
            try:
                self._kind.convert(self.result)
            except PayloadMismatch as error:
                raise ValidationError(str(error)) from None
        return cleaned

    @property
    def result(self) -> Any:
        """The decision, as JSON has it. What was left empty and is not required is left out."""
        if not self._names:
            return self.cleaned_data[WHOLE]
        values = {name: self.cleaned_data[PREFIX + name] for name in self._names}
        left_out = {
            name for name, value in values.items() if value in (None, "") and not self.fields[PREFIX + name].required
        }
        return {name: value for name, value in values.items() if name not in left_out}


def _type(item: WorkItem) -> Any:
    decisions = settings.topic(item.topic).decisions
    for topic in filter(None, (decisions, item.topic)):
        try:
            kind = type_of(topic)
        except ConfigurationError:  # E025 says so
            return None
        if kind is not None:
            return None if kind.of_bytes else kind
    return None


def _values(item: WorkItem) -> dict[str, Any]:
    if isinstance(item.result, dict):
        return item.result
    given = [values for values in (item.payload, item.form) if isinstance(values, dict)]
    return {name: value for values in given for name, value in values.items()}


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, forms.Field]]:
    """Yield a form field for each property of a JSON Schema; none if it describes no object."""
    inner = schema.get("$defs", {})
    found = _resolved(schema, inner)
    required = set(found.get("required", ()))
    for name, described in found.get("properties", {}).items():
        yield name, _field(name, _resolved(described, inner), name in required)


def _resolved(schema: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = inner.get(schema["$ref"].rpartition("/")[2], {})
    return schema


def _field(name: str, schema: dict[str, Any], required: bool) -> forms.Field:
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    optional = not required or len(choices) < len(schema.get("anyOf", ()))
    if len(choices) == 1:
        schema = {**schema, **choices[0]}
    options: dict[str, Any] = {"label": schema.get("title", name), "required": not optional}
    options |= {"help_text": schema["description"]} if "description" in schema else {}
    listed = schema.get("enum")
    if listed and all(isinstance(one, str) for one in listed):
        blank = [("", "–")] if optional else []
        return forms.ChoiceField(choices=[*blank, *((one, one) for one in listed)], **options)
    kind = schema.get("type")
    if kind == "boolean":
        return forms.BooleanField(**{**options, "required": False})
    if kind == "integer":
        return forms.IntegerField(min_value=schema.get("minimum"), max_value=schema.get("maximum"), **options)
    if kind == "number":
        return forms.FloatField(**options)
    if kind == "string" and "contentEncoding" not in schema:
        return forms.CharField(max_length=schema.get("maxLength"), strip=False, **options)
    return JSONTextField(**options)
