"""Responses of the health and status endpoints, the same in the site and at a consumer's port.

With `detailed` a response has names and figures; without, it says only whether all is well.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error
from django.utils import translation

from sqlqueue.conf import settings
from sqlqueue.database import retries
from sqlqueue.database.log import Log, all_logs, home_log
from sqlqueue.database.tables import pending_migrations
from sqlqueue.exceptions import InvalidMessage, Unreachable
from sqlqueue.stats.attention import findings
from sqlqueue.stats.cached import UNREACHABLE, Cached, recent_survey
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.message_status import get_status
from sqlqueue.stats.survey import Survey

GROUP_FIGURES = (
    "topic",
    "group",
    "paused",
    "outside_hours",
    "limited",
    "budget_spent",
    "lag",
    "estimated",
    "oldest_age",
    "dead_letters",
    "subscribers",
)


@dataclass(frozen=True, slots=True)
class Excess:
    """A health limit that is exceeded: its name, the value, and what is allowed.

    Beside the limits of SQLQUEUE['HEALTH'] there are fixed ones: no partition may have reached a limit at which nothing
    new is read (`full_partitions`, `held_partitions`); and, with topic and group "", no background task may fail again
    and again (`failing_tasks`), the database has to take writes (`failing_writes`), and consumers may write to one
    database server only (`servers`).
    """

    topic: str
    group: str
    limit: str
    value: float
    allowed: float


def excesses(survey: Survey) -> list[Excess]:
    """Return every limit that is exceeded, those of the whole queue first, then by group."""
    whole = [Excess("", "", "failing_tasks", len(survey.failing), 0)] if survey.failing else []
    if len(survey.servers) > 1:
        whole.append(Excess("", "", "servers", len(survey.servers), 1))
    if survey.writing.fails:
        whole.append(Excess("", "", "failing_writes", 1, 0))
    return whole + [excess for group in survey.groups for excess in _of_group(group)]


def _of_group(group: GroupSurvey) -> list[Excess]:
    limits = settings.reading.limits.get(group.topic, settings.reading.limits[""])
    figures = (
        ("max_lag", None if group.outside_hours else group.lag, limits.max_lag),
        ("max_age", group.waited, limits.max_age),
        ("max_dead_letters", group.dead_letters, limits.max_dead_letters),
        ("full_partitions", sum(one.why == "full" for one in group.stuck), 0),
        ("held_partitions", sum(one.why == "held" for one in group.stuck), 0),
    )
    found = [
        Excess(group.topic, group.group, name, value, allowed)
        for name, value, allowed in figures
        if value is not None and allowed is not None and value > allowed
    ]
    if limits.no_subscriber and not group.subscribers and not group.rests:
        found.append(Excess(group.topic, group.group, "no_subscriber", 0, 1))
    return found


class HealthResponse(NamedTuple):
    """An HTTP status and a JSON object."""

    status: int
    body: dict[str, Any]


_pending: Cached[bool] = Cached(pending_migrations)


def has_token(authorization: str) -> bool:
    """Tell whether an Authorization header carries the STATUS_TOKEN; compares in constant time."""
    kind, _, token = authorization.partition(" ")
    if not settings.STATUS_TOKEN or kind.lower() != "bearer":
        return False
    return hmac.compare_digest(token.strip().encode(), settings.STATUS_TOKEN.encode())


def live() -> HealthResponse:
    """Return 200: the process answers."""
    return HealthResponse(200, {"ok": True})


def ready(detailed: bool) -> HealthResponse:
    """Return 200 if the database answers and its tables are those of this version; with several databases: any of
    them."""
    home = home_log()
    problems = {home: _unready(home)}
    if detailed or problems[home]:  # else the others are not asked: one that hangs would hold up the answer
        problems |= {log: _unready(log) for log in all_logs() if log != home}
    if all(problems.values()):
        return not_ready(problems[home], detailed)
    if detailed and settings.several:
        told = {log.label: {"ok": not problem} for log, problem in problems.items()}
        return HealthResponse(200, {"ok": True, "databases": told})
    return HealthResponse(200, {"ok": True})


def _unready(log: Log) -> str:
    try:
        return "migrations are not applied" if _pending.get(log) else ""
    except Unreachable as error:
        return str(error)


def not_ready(problem: str, detailed: bool) -> HealthResponse:
    """Return 503; with details also the problem."""
    return HealthResponse(503, {"ok": False, "problem": problem} if detailed else {"ok": False})


def health(detailed: bool) -> HealthResponse:
    """Return 200 if no health limit is exceeded; with details also what needs attention, and each group's figures. With
    several databases: of each by its name, and 200 if all are well."""
    return _of_databases(lambda log: _health(log, detailed), detailed)


def _of_databases(answer: Callable[[Log], HealthResponse], detailed: bool) -> HealthResponse:
    if not settings.several:
        return answer(home_log())
    answers = {log: answer(log) for log in all_logs()}
    ok = all(one.status == 200 for one in answers.values())
    body: dict[str, Any] = {"ok": ok and all(one.body.get("ok") for one in answers.values())}
    if detailed:
        body["databases"] = {log.alias: one.body for log, one in answers.items()}
    return HealthResponse(200 if ok else 503, body)


def _health(log: Log, detailed: bool) -> HealthResponse:
    try:
        survey = recent_survey.get(log)
    except Unreachable as error:
        return not_ready(str(error), detailed)
    exceeded = excesses(survey)
    if not detailed:
        return HealthResponse(503 if exceeded else 200, {"ok": not exceeded})
    groups = [{name: getattr(group, name) for name in GROUP_FIGURES} for group in survey.groups]
    return HealthResponse(503 if exceeded else 200, {**_judged(survey, exceeded), "groups": groups})


def status() -> HealthResponse:
    """Return all stats, with several databases by their names. Only for authorized requests."""
    return _of_databases(_status, detailed=True)


def _status(log: Log) -> HealthResponse:
    try:
        survey = recent_survey.get(log)
    except Unreachable as error:
        return not_ready(str(error), detailed=True)
    groups = [{**asdict(group), "away": group.away} for group in survey.groups]
    return HealthResponse(200, {**asdict(survey), "groups": groups, **_judged(survey, excesses(survey))})


def message(topic: str, id: str, key: str) -> HealthResponse:
    """Return the status of a message in every group. Only for authorized requests."""
    if not topic or not id:
        return HealthResponse(400, {"error": "name the message: ?topic=…&id=…, and &key=… if it has one"})
    try:
        found = get_status(topic, id=id, key=key)
    except InvalidMessage as error:
        return HealthResponse(400, {"error": str(error)})
    except Error as error:
        if retries.classify(error) is not retries.ErrorKind.GONE:
            raise
        retries.drop_connection(home_log())
        return not_ready(UNREACHABLE, detailed=True)
    if found is None:
        return HealthResponse(404, {"error": "unknown: never published, cancelled, or collected without a kept result"})
    return HealthResponse(200, {**asdict(found), "finished": found.finished})


def _judged(survey: Survey, exceeded: list[Excess]) -> dict[str, Any]:
    with translation.override(None):  # the rest of the body is English, too
        attention = [finding.as_dict() for finding in findings(survey)]
    judged = {"passed": [asdict(excess) for excess in exceeded], "attention": attention}
    return {"ok": not exceeded, "taken_at": survey.taken_at, **judged}


def as_json(body: dict[str, Any]) -> bytes:
    """Return a body as JSON in UTF-8."""
    return DjangoJSONEncoder(ensure_ascii=False).encode(body).encode()
