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


def refusal(request: HttpRequest, *permissions: str) -> HealthResponse | None:
    """Return the answer to a request that may not be answered in detail; None if it may. permissions: those that a
    user needs. Who asks is not known while the database does not answer."""
    if has_token(request.headers.get("Authorization", "")):
        return None
    user = getattr(request, "user", None)
    try:
        if user is not None and user.is_authenticated:
            if user.has_perms(permissions):
                return None
            return HealthResponse(403, {"error": f"this needs the permission {' and '.join(permissions)}"})
    except Error:
        pass
    return HealthResponse(401, {"error": "log in, or send the token: Authorization: Bearer …"})


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
    return responses.ready(not refusal(request, TOPICS))


@endpoint
def health(request: HttpRequest) -> HealthResponse:
    """Answer whether no limit of the settings is passed; in detail, with each group's figures."""
    return responses.health(not refusal(request, TOPICS))


@endpoint
def status(request: HttpRequest) -> HealthResponse:
    """Answer all stats, to requests that may see them."""
    return refusal(request, TOPICS) or responses.status()


@endpoint
def message(request: HttpRequest) -> HealthResponse:
    """Answer the status of one message in every group, to requests that may see its result."""
    refused = refusal(request, TOPICS, MESSAGES)
    return refused or responses.message(*(request.GET.get(name, "") for name in ("topic", "id", "key")))


@endpoint
def openapi(request: HttpRequest) -> HealthResponse:
    """Answer the description of these endpoints, openapi.json, with the version and where they are."""
    described = json.loads(DESCRIPTION.read_text())
    info = {**described["info"], "version": __version__}
    return HealthResponse(200, {**described, "info": info, "servers": [{"url": request.path.rsplit("/", 1)[0] or "/"}]})
