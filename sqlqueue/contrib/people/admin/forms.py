"""The forms of a work item's page. That of the decision has the fields of a payload type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.cells import editable
from sqlqueue.admin.times import MomentField
from sqlqueue.contrib.people.admin.permissions import REVIEW, WORK, user_named
from sqlqueue.contrib.people.models import USER_LENGTH, WorkItem
from sqlqueue.contrib.people.topics import topic_options
from sqlqueue.contrib.people.work import COMMENT_LENGTH
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.exceptions import ConfigurationError, PayloadMismatch
from sqlqueue.payloads.topic_types import type_of

PREFIX = "field-"  # of the names of a payload type's fields: they may be called as the form's own
UNTYPED = {"title", "description", "default"}  # what the schema of any JSON may have
WHOLE = "payload"  # the field for a decision that no payload type describes


class UserField(forms.CharField):
    """The name of a user who has one of these permissions for the item's topic."""

    def __init__(self, item: WorkItem, codenames: tuple[str, ...], **options: Any) -> None:
        super().__init__(max_length=USER_LENGTH, **options)
        self._item, self._codenames = item, codenames

    def clean(self, value: Any) -> str:
        """Return the name. Raises ValidationError for a user who is not there, or may not do it."""
        name: str = super().clean(value)
        if not name:
            return name
        found = user_named(name, self._item.topic, *self._codenames)
        if found is None:
            raise ValidationError(_("There is no user %(name)s who may do this.") % {"name": name})
        return str(found.get_username())  # as items know it: MySQL finds `BOB` for `bob`


class JSONTextField(forms.JSONField):
    """JSON in a text area; an empty one is None."""

    widget = forms.Textarea({"rows": 8})
    empty_values = (None, "")  # an empty list is a value

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what was typed, as it was."""
        return forms.fields.InvalidJSONInput(data or "")

    def prepare_value(self, value: Any) -> Any:
        """Return the text to show, indented unless that makes it very long."""
        if value is None or isinstance(value, forms.fields.InvalidJSONInput):
            return value
        return editable(value)

    def to_python(self, value: Any) -> Any:
        """Return the value. Raises ValidationError, also for what Python cannot read: nested too deeply, a number of
        too many digits, half a surrogate pair."""
        try:
            found = super().to_python(value)
            json.dumps(found, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise ValidationError(self.error_messages["invalid"], code="invalid") from None
        return found


class LinesField(forms.CharField):
    """A text of several lines, which a single-line input would join."""

    widget = forms.Textarea({"rows": 4})

    def to_python(self, value: Any) -> Any:
        """Return the text with the line ends that it had: browsers send CR LF."""
        found = super().to_python(value)
        return found.replace("\r\n", "\n") if isinstance(found, str) else found


class CommentForm(forms.Form):
    """The comment to what is done with an item. needed: it cannot be left out."""

    needed: ClassVar[bool] = False

    comment = forms.CharField(
        label=gettext_lazy("Comment"),
        max_length=COMMENT_LENGTH,
        required=False,
        widget=forms.Textarea({"rows": 3}),
    )

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["comment"].required = self.needed


class NeededCommentForm(CommentForm):
    """A comment that is needed."""

    needed = True


class AssignForm(CommentForm):
    """To give an item, or its review, to another user."""

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(item, data, **options)
        codenames = (REVIEW,) if item.state == "review" else (WORK,)
        user = UserField(item, codenames, label=gettext_lazy("User"), help_text=gettext_lazy("The user's name."))
        self.fields = {"user": user, **self.fields}


class LaterForm(CommentForm):
    """Until when an item is put off."""

    until = MomentField(label=gettext_lazy("Until"), help_text=gettext_lazy("in this site's time zone"))
    field_order = ("until", "comment")


class DecisionForm(CommentForm):
    """What is decided. Its fields are those of the payload type of the topic of decisions, or else of the item's own
    topic; without one it is JSON. It begins with the payload, over which go the values that the handler has filled in,
    or with what was submitted last."""

    def __init__(self, item: WorkItem, data: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(item, data, **options)
        self._kind = _type(item)
        values = _values(item)
        own: dict[str, forms.Field] = {}
        self._needed: set[str] = set()
        if self._kind is not None:
            own, self._needed = _fields(self._kind.schema(), values)
        self._names = list(own)
        if not own:
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
        """Add the result: the decision, as JSON has it, without what was left empty and is not required. Refuse one
        that does not fit the payload type."""
        cleaned = self.cleaned_data
        if self.errors:
            return cleaned
        values = {name: cleaned[PREFIX + name] for name in self._names}
        result = {name: value for name, value in values.items() if value not in (None, "") or name in self._needed}
        cleaned["result"] = result if self._names else cleaned[WHOLE]
        if self._kind is not None:
            try:
                self._kind.convert(cleaned["result"])
            except PayloadMismatch as error:
                raise ValidationError(str(error)) from None
        return cleaned


def _type(item: WorkItem) -> Any:
    decisions = topic_options(item.topic).decisions
    for topic in filter(None, (decisions, item.topic, item.topic.removesuffix(DEAD_LETTER_SUFFIX))):
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


def _fields(schema: dict[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, forms.Field], set[str]]:
    """Return a form field for each property of a JSON Schema (none if it describes no object), filled with these values
    or else with its default, and the properties that no object may lack."""
    inner = schema.get("$defs", {})
    found = _resolved(schema, inner)
    needed = set(found.get("required", ()))
    fields = {}
    for name, described in found.get("properties", {}).items():
        value = values[name] if name in values else described.get("default")
        fields[name] = _field(name, described, inner, name in needed, value)
        if value == "" and name in values:  # it fits as it is
            fields[name].required = False
        fields[name].initial = value
    return fields, needed


def _resolved(schema: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = inner.get(schema["$ref"].rpartition("/")[2], {})
    return schema


def _field(name: str, described: dict[str, Any], inner: dict[str, Any], needed: bool, value: Any) -> forms.Field:
    """Return the form field of a property of a JSON Schema: a choice, a box, a number, a text, or else JSON."""
    schema = _resolved(described, inner)
    kinds = schema.get("anyOf", ())
    choices = [_resolved(one, inner) for one in kinds if one.get("type") != "null"]
    nullable = len(choices) < len(kinds) or None in schema.get("enum", ()) or not schema.keys() - UNTYPED
    if len(choices) == 1:
        schema = {**schema, **choices[0]}
    options: dict[str, Any] = {"label": described.get("title", name), "required": needed and not nullable}
    options |= {"help_text": schema["description"]} if "description" in schema else {}
    listed = {str(one): one for one in schema.get("enum", ()) if one is not None}
    if listed and all(type(one) in (str, int) for one in listed.values()):
        blank = [] if options["required"] and str(value) in listed else [("", "–")]  # none is chosen unsaid
        texts = [*blank, *((text, text) for text in listed)]
        return forms.TypedChoiceField(choices=texts, coerce=listed.__getitem__, empty_value=None, **options)
    kind = schema.get("type")
    if kind == "boolean" and nullable:
        return forms.NullBooleanField(**options)
    if kind == "boolean":
        return forms.BooleanField(**{**options, "required": False})
    if kind == "integer":
        return forms.IntegerField(min_value=schema.get("minimum"), max_value=schema.get("maximum"), **options)
    if kind == "number":
        return forms.FloatField(**options)
    if kind == "string" and "contentEncoding" not in schema:
        text_field = LinesField if "\n" in str(value) else forms.CharField
        empty = None if nullable else ""
        return text_field(max_length=schema.get("maxLength"), strip=False, empty_value=empty, **options)
    return JSONTextField(**options)
