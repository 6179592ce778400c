"""Who may see details: requests with the STATUS_TOKEN, and users with the permission."""

from __future__ import annotations

from django.db import Error
from django.http import HttpRequest

from sqlqueue.monitoring.responses import has_token

TOPICS, MESSAGES = "sqlqueue.view_topic", "sqlqueue.view_message"


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
