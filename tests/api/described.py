"""The OpenAPI description of the endpoints, made from the types of the values that they answer with, as
sqlqueue/api/openapi.json has it. After a change of these call write(), in `python manage.py shell`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

from sqlqueue.api.views import DESCRIPTION
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, ID_LENGTH, KEY_LENGTH, TOPIC_LENGTH
from sqlqueue.monitoring.responses import GROUP_FIGURES, Excess
from sqlqueue.stats.findings import Finding, Kind
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.message_status import MessageStatus
from sqlqueue.stats.survey import Survey

PLAIN: dict[type, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Kind: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
}
OK = {
    "type": "object",
    "properties": {"ok": {"const": True}},
    "required": ["ok"],
    "additionalProperties": False,
}
NOT_OK = {
    "type": "object",
    "description": "`problem` needs the token or the permission.",
    "properties": {"ok": {"const": False}, "problem": {"type": "string"}},
    "required": ["ok"],
    "additionalProperties": False,
}
ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}
TEXTS = {
    "200": "Yes",
    "400": "The question is wrong",
    "401": "Not logged in",
    "403": "Permission denied",
    "404": "Unknown",
    "503": "No",
}
DETAILS: list[dict[str, list[str]]] = [{}, {"token": []}, {"session": []}]  # any of these; {}: none is needed


def description() -> dict[str, Any]:
    """Return the document, without the version and where the endpoints are."""
    finding = _object({**_schema(Finding)["properties"], "word": _schema(str)})
    lists = {"passed": _schema(list[Excess]), "attention": {"type": "array", "items": finding}}
    judged = {"ok": {"type": "boolean"}, "taken_at": _schema(datetime), **lists}
    figures = _schema(Survey)["properties"]
    group = {**_schema(GroupSurvey)["properties"], "away": {"type": "boolean"}}
    health = {**judged, "groups": {"type": "array", "items": _object({name: group[name] for name in GROUP_FIGURES})}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sqlqueue",
            "description": "Health and status of the message queue. Details need the token of "
            "SQLQUEUE['STATUS_TOKEN'], or a user with the permission sqlqueue.view_topic.",
        },
        "paths": {
            "/health/live": _path("The process answers.", {"200": "Ok"}),
            "/health/ready": _path(
                "The database answers, and the migrations are applied.", {"200": "Ok", "503": "NotOk"}, DETAILS
            ),
            "/health/": _path(
                "No limit of SQLQUEUE['HEALTH'] is passed.",
                {"200": ["Ok", "Health"], "503": ["NotOk", "Health"]},
                DETAILS,
            ),
            "/status/": _path(
                "All stats. Needs the token or the permission.",
                {"200": "Status", "401": "Error", "403": "Error", "503": "NotOk"},
                DETAILS[1:],
            ),
            "/message/": _with_parameters(
                _path(
                    "The status of one message in every group. Needs the token, or sqlqueue.view_message, too.",
                    {"200": "Message", "400": "Error", "401": "Error", "403": "Error", "404": "Error", "503": "NotOk"},
                    DETAILS[1:],
                ),
                topic=("the message's topic", 1, TOPIC_LENGTH + len(DEAD_LETTER_SUFFIX)),
                id=("its id", 1, ID_LENGTH),
                key=("its key, if it has one", 0, KEY_LENGTH),
            ),
        },
        "components": {
            "schemas": {
                "Ok": OK,
                "NotOk": NOT_OK,
                "Error": ERROR,
                "Health": _object(health),
                "Message": _object(_message()),
                "Status": _object({**figures, "groups": {"type": "array", "items": _object(group)}, **judged}),
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
            },
        },
    }


def _message() -> dict[str, Any]:
    """Return the properties of a message's status."""
    return {**_schema(MessageStatus)["properties"], "finished": {"type": "boolean"}}


def _with_parameters(path: dict[str, Any], **names: tuple[str, int, int]) -> dict[str, Any]:
    """Return a path with these texts in its query: what each is, and its least and most characters. Those that may not
    be empty are needed."""
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": least > 0,
            "description": text,
            "schema": {"type": "string", "minLength": least, "maxLength": most},
        }
        for name, (text, least, most) in names.items()
    ]
    return {**path, "parameters": parameters}


def _path(summary: str, schemas: dict[str, Any], security: list[dict[str, list[str]]] | None = None) -> dict[str, Any]:
    responses = {status: _response(status, names) for status, names in schemas.items()}
    operation = {"summary": summary, "responses": responses, "security": [{}] if security is None else security}
    without_bodies = {status: {"description": response["description"]} for status, response in responses.items()}
    return {"get": operation, "head": {**operation, "responses": without_bodies}}


def _response(status: str, names: str | list[str]) -> dict[str, Any]:
    references = [{"$ref": f"#/components/schemas/{name}"} for name in ([names] if isinstance(names, str) else names)]
    schema = references[0] if len(references) == 1 else {"oneOf": references}
    text = TEXTS[status]
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type. Raises TypeError for a type without one."""
    if kind is Any:
        return {}
    if kind in PLAIN:
        return dict(PLAIN[kind])
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return {**_object({field.name: _schema(hints[field.name]) for field in fields(kind)}), "title": kind.__name__}
    if get_origin(kind) in (list, tuple):
        return {"type": "array", "items": _schema(get_args(kind)[0])}
    if get_origin(kind) in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if part is type(None) else _schema(part) for part in get_args(kind)]}
    if get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": _schema(get_args(kind)[1])}
    raise TypeError(f"no schema for {kind!r}")


def write() -> None:
    """Write the file anew."""
    DESCRIPTION.write_text(json.dumps(description(), indent=2) + "\n")
