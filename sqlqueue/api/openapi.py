"""The OpenAPI description of the endpoints, made from the very values that they answer with."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

from sqlqueue import __version__
from sqlqueue.observe.answers import GROUP_FIGURES
from sqlqueue.observe.health import Excess
from sqlqueue.observe.survey import GroupSurvey, Survey

PLAIN: dict[type, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
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
    "description": "Strangers are told nothing more.",
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
DETAILS: list[dict[str, list[str]]] = [{}, {"token": []}, {"session": []}]  # each is enough; {}: none


def description(prefix: str) -> dict[str, Any]:
    """Return the document for endpoints below a path."""
    judged = {"ok": {"type": "boolean"}, "taken_at": _schema(datetime), "passed": _schema(list[Excess])}
    figures = _schema(Survey)["properties"]
    group = {**_schema(GroupSurvey)["properties"], "away": {"type": "boolean"}}
    health = {**judged, "groups": {"type": "array", "items": _object({name: group[name] for name in GROUP_FIGURES})}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sqlqueue",
            "version": __version__,
            "description": "How the message queue is. Details need the token of SQLQUEUE['STATUS_TOKEN'], or a user "
            "with the permission sqlqueue.view_topic.",
        },
        "servers": [{"url": prefix}],
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
                "Everything that is known, for those who may see it.",
                {"200": "Status", "401": "Error", "403": "Error", "503": "NotOk"},
                DETAILS[1:],
            ),
        },
        "components": {
            "schemas": {
                "Ok": OK,
                "NotOk": NOT_OK,
                "Error": ERROR,
                "Health": _object(health),
                "Status": _object({**figures, "groups": {"type": "array", "items": _object(group)}, **judged}),
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
            },
        },
    }


def _path(summary: str, answers: dict[str, Any], security: list[dict[str, list[str]]] | None = None) -> dict[str, Any]:
    responses = {status: _response(status, names) for status, names in answers.items()}
    operation = {"summary": summary, "responses": responses, "security": [{}] if security is None else security}
    bodiless = {status: {"description": response["description"]} for status, response in responses.items()}
    return {"get": operation, "head": {**operation, "responses": bodiless}}


def _response(status: str, names: str | list[str]) -> dict[str, Any]:
    references = [{"$ref": f"#/components/schemas/{name}"} for name in ([names] if isinstance(names, str) else names)]
    schema = references[0] if len(references) == 1 else {"oneOf": references}
    said = {"200": "Yes", "401": "Nobody is known", "403": "Not this user", "503": "No"}[status]
    return {"description": said, "content": {"application/json": {"schema": schema}}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _schema(kind: Any) -> dict[str, Any]:
    """Return the schema of a type as JSON shows it."""
    if kind in PLAIN:
        return dict(PLAIN[kind])
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return {**_object({field.name: _schema(hints[field.name]) for field in fields(kind)}), "title": kind.__name__}
    if get_origin(kind) in (list, tuple):
        return {"type": "array", "items": _schema(get_args(kind)[0])}
    if get_origin(kind) in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if part is type(None) else _schema(part) for part in get_args(kind)]}
    raise TypeError(f"no schema for {kind!r}")
