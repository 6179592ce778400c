"""Who may see names and figures: bearers of the STATUS_TOKEN, and users with the permission."""

from __future__ import annotations

from django.db import Error
from django.http import HttpRequest

from sqlqueue.observe.answers import has_token

PERMISSION = "sqlqueue.view_topic"


def is_known(request: HttpRequest) -> bool:
    """Tell whether somebody is logged in. A database that is away knows nobody."""
    user = getattr(request, "user", None)
    try:
        return bool(user is not None and user.is_authenticated)
    except Error:
        return False


def may_see(request: HttpRequest) -> bool:
    """Tell whether this request may be answered in detail."""
    if has_token(request.headers.get("Authorization", "")):
        return True
    try:
        return is_known(request) and request.user.has_perm(PERMISSION)
    except Error:
        return False
