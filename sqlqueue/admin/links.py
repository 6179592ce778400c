"""Addresses of the queue's pages, for those who may see them."""

from __future__ import annotations

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from sqlqueue.admin.permissions import may


def page(request: HttpRequest, model: str, name: str, key: int | str | None = None, **query: str) -> str:
    """Return the address of a model's page ("changelist", "change", …) in the present admin site; "" if the user may
    not see it, or the site has not registered the model."""
    if not may(request, f"view_{model}"):
        return ""
    site = getattr(request, "current_app", "admin")
    try:
        address = reverse(f"admin:sqlqueue_{model}_{name}", args=[] if key is None else [quote(key)], current_app=site)
    except NoReverseMatch:
        return ""
    return f"{address}?{urlencode(query)}" if query else address
