"""URLs of the queue's pages, as far as the user may see them."""

from __future__ import annotations

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from sqlqueue.admin.permissions import may


def page_url(request: HttpRequest, model: str, name: str, key: int | str | None = None, **query: str) -> str:
    """Return the URL of a model's page ("changelist", "change", …) in the current admin site; "" if the user may not
    view the model, or the site has not registered it."""
    if not may(request, f"view_{model}"):
        return ""
    site = getattr(request, "current_app", "admin")
    try:
        url = reverse(f"admin:sqlqueue_{model}_{name}", args=[] if key is None else [quote(key)], current_app=site)
    except NoReverseMatch:
        return ""
    return f"{url}?{urlencode(query)}" if query else url
