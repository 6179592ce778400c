"""What is answered to whoever asks how the queue is: the same at a site's addresses and at a consumer's port.

`detailed` is for those who may know names and figures; everybody else learns only whether it is well.
"""

from __future__ import annotations

import hmac
from dataclasses import asdict
from typing import Any, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.core.signals import setting_changed

from sqlqueue.conf import settings
from sqlqueue.database.tables import pending_migrations
from sqlqueue.exceptions import Unreachable
from sqlqueue.observe.health import Excess, excesses
from sqlqueue.observe.recent import Recent, recent_survey
from sqlqueue.observe.survey import Survey

GROUP_FIGURES = ("topic", "group", "paused", "lag", "estimated", "oldest_age", "dead_letters", "subscribers")


class Answer(NamedTuple):
    """An HTTP status and a JSON object."""

    status: int
    body: dict[str, Any]


_pending: Recent[bool] = Recent(pending_migrations)


def has_token(authorization: str) -> bool:
    """Tell whether an Authorization header bears the STATUS_TOKEN. Takes as long for a near miss as for any other."""
    kind, _, token = authorization.partition(" ")
    if not settings.STATUS_TOKEN or kind.lower() != "bearer":
        return False
    return hmac.compare_digest(token.strip().encode(), settings.STATUS_TOKEN.encode())


def live() -> Answer:
    """The process answers."""
    return Answer(200, {"ok": True})


def ready(detailed: bool) -> Answer:
    """The database answers, and its tables are those of this version."""
    try:
        problem = "migrations are not applied" if _pending.get() else ""
    except Unreachable as error:
        problem = str(error)
    return not_ready(problem, detailed) if problem else Answer(200, {"ok": True})


def not_ready(problem: str, detailed: bool) -> Answer:
    """Say that something is not ready, and to those who may know, what."""
    return Answer(503, {"ok": False, "problem": problem} if detailed else {"ok": False})


def health(detailed: bool) -> Answer:
    """No limit of SQLQUEUE['HEALTH'] is passed; with details, each group's figures."""
    try:
        survey = recent_survey.get()
    except Unreachable as error:
        return not_ready(str(error), detailed)
    passed = excesses(survey)
    if not detailed:
        return Answer(503 if passed else 200, {"ok": not passed})
    groups = [{name: getattr(group, name) for name in GROUP_FIGURES} for group in survey.groups]
    return Answer(503 if passed else 200, {**_judged(survey, passed), "groups": groups})


def status() -> Answer:
    """Everything that the survey knows. For those who may know it only."""
    try:
        survey = recent_survey.get()
    except Unreachable as error:
        return not_ready(str(error), detailed=True)
    groups = [{**asdict(group), "away": group.away} for group in survey.groups]
    return Answer(200, {**asdict(survey), "groups": groups, **_judged(survey, excesses(survey))})


def _judged(survey: Survey, passed: list[Excess]) -> dict[str, Any]:
    return {"ok": not passed, "taken_at": survey.taken_at, "passed": [asdict(excess) for excess in passed]}


def as_json(body: dict[str, Any]) -> bytes:
    """Return an answer's body as it is sent."""
    return DjangoJSONEncoder(ensure_ascii=False).encode(body).encode()


def _changed(*, setting: str, **_: object) -> None:
    if setting == "SQLQUEUE":
        _pending.forget()


setting_changed.connect(_changed, dispatch_uid="sqlqueue.answers")
