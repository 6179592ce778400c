"""Form fields of people's work: a user, JSON, and the fields of a payload type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import editable
from sqlqueue.contrib.people.admin.permissions import user_named
from sqlqueue.contrib.people.models import USER_LENGTH, WorkItem
from sqlqueue.contrib.people.topics import topic_options
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.payloads.topic_types import type_of

UNTYPED = {"title", "description", "default"}  # what the schema of any JSON may have


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


def decision_type(item: WorkItem) -> Any:
    """Return the payload type of what is decided: of the topic of decisions, or else of
    the item's own; None without one."""
    decisions = topic_options(item.topic).decisions
    for topic in filter(None, (decisions, item.topic, item.topic.removesuffix(DEAD_LETTER_SUFFIX))):
        try:
            kind = type_of(topic)
        except ConfigurationError:  # E025 says so
            return None
        if kind is not None:
            return None if kind.of_bytes else kind
    return None


def decision_values(item: WorkItem) -> dict[str, Any]:
    """Return what a decision begins with: the payload, over which go the values that the handler has filled
    in, or what was submitted last."""
    if isinstance(item.result, dict):
        return item.result
    given = [values for values in (item.payload, item.form) if isinstance(values, dict)]
    return {name: value for values in given for name, value in values.items()}


def fields_of(schema: dict[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, forms.Field], set[str]]:
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
