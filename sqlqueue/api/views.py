"""The REST endpoints. Only GET and HEAD; nobody on the way may keep an answer; strangers learn ok or not ok."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sqlqueue.api.access import is_known, may_see
from sqlqueue.api.openapi import description
from sqlqueue.observe import answers
from sqlqueue.observe.answers import Answer

View = Callable[[HttpRequest], HttpResponse]


def endpoint(answer: Callable[[HttpRequest], Answer]) -> View:
    """Make a view of a function that answers. It runs outside of ATOMIC_REQUESTS, and behind no login: a database that
    is away, and a probe that has no account, are what it is for."""

    def view(request: HttpRequest) -> HttpResponse:
        status, body = answer(request)
        response = HttpResponse(answers.as_json(body), content_type="application/json", status=status)
        if status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="sqlqueue"'
        return response

    view.__doc__ = answer.__doc__
    return login_not_required(transaction.non_atomic_requests(never_cache(require_safe(view))))


@endpoint
def live(request: HttpRequest) -> Answer:
    """The process answers."""
    return answers.live()


@endpoint
def ready(request: HttpRequest) -> Answer:
    """The database answers, and the queue's migrations are applied."""
    return answers.ready(may_see(request))


@endpoint
def health(request: HttpRequest) -> Answer:
    """No limit of the settings is passed; in detail, each group's figures."""
    return answers.health(may_see(request))


@endpoint
def status(request: HttpRequest) -> Answer:
    """Everything, for those who may see it."""
    if may_see(request):
        return answers.status()
    if is_known(request):
        return Answer(403, {"error": "this needs the permission sqlqueue.view_topic"})
    return Answer(401, {"error": "log in, or send the token: Authorization: Bearer …"})


@endpoint
def openapi(request: HttpRequest) -> Answer:
    """The description of these endpoints."""
    return Answer(200, description(request.path.rsplit("/", 1)[0] or "/"))
