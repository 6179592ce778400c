"""The REST endpoints. They accept only GET and HEAD, forbid caching, and show details only to permitted requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from django.contrib.auth.decorators import login_not_required
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from sqlqueue import __version__
from sqlqueue.database.transactions import outside_transactions
from sqlqueue.monitoring import responses
from sqlqueue.monitoring.responses import HealthResponse, has_token

DESCRIPTION = Path(__file__).with_name("openapi.json")
TOPICS, MESSAGES = "sqlqueue.view_topic", "sqlqueue.view_message"
View = Callable[[HttpRequest], HttpResponse]


def is_logged_in(request: HttpRequest) -> bool:
    """Tell whether a user is logged in. False if the database does not answer."""
    user = getattr(request, "user", None)
    try:
        return bool(user is not None and user.is_authenticated)
    except Error:
        return False


def may_see_details(request: HttpRequest, *permissions: str) -> bool:
    """Tell whether this request may be answered in detail. permissions: those that a user needs, TOPICS if none is
    named. False if the database does not answer."""
    if has_token(request.headers.get("Authorization", "")):
        return True
    try:
        return is_logged_in(request) and request.user.has_perms(permissions or (TOPICS,))
    except Error:
        return False


def endpoint(answer: Callable[[HttpRequest], HealthResponse]) -> View:
    """Return a view that sends what a function answers. It runs outside of ATOMIC_REQUESTS and needs no login, since
    probes have no account and must be answered without a database, too."""

    def view(request: HttpRequest) -> HttpResponse:
        status, body = answer(request)
        response = HttpResponse(responses.as_json(body), content_type="application/json", status=status)
        if status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="sqlqueue"'
        return response

    view.__doc__ = answer.__doc__
    # Other methods are refused with 405 before anything is done, where the CSRF middleware would send a page.
    return csrf_exempt(login_not_required(outside_transactions(never_cache(require_safe(view)))))


@endpoint
def live(request: HttpRequest) -> HealthResponse:
    """Answer that the process is alive."""
    return responses.live()


@endpoint
def ready(request: HttpRequest) -> HealthResponse:
    """Answer whether the database answers and the queue's migrations are applied."""
    return responses.ready(may_see_details(request))


@endpoint
def health(request: HttpRequest) -> HealthResponse:
    """Answer whether no limit of the settings is passed; in detail, with each group's figures."""
    return responses.health(may_see_details(request))


@endpoint
def status(request: HttpRequest) -> HealthResponse:
    """Answer all stats, to requests that may see them."""
    return responses.status() if may_see_details(request) else _refusal(request, TOPICS)


@endpoint
def message(request: HttpRequest) -> HealthResponse:
    """Answer the status of one message in every group, to requests that may see its result."""
    if not may_see_details(request, TOPICS, MESSAGES):
        return _refusal(request, TOPICS, MESSAGES)
    return responses.message(*(request.GET.get(name, "") for name in ("topic", "id", "key")))


def _refusal(request: HttpRequest, *permissions: str) -> HealthResponse:
    if is_logged_in(request):
        return HealthResponse(403, {"error": f"this needs the permission {' and '.join(permissions)}"})
    return HealthResponse(401, {"error": "log in, or send the token: Authorization: Bearer …"})


@endpoint
def openapi(request: HttpRequest) -> HealthResponse:
    """Answer the description of these endpoints, openapi.json, with the version and where they are."""
    described = json.loads(DESCRIPTION.read_text())
    info = {**described["info"], "version": __version__}
    return HealthResponse(200, {**described, "info": info, "servers": [{"url": request.path.rsplit("/", 1)[0] or "/"}]})
