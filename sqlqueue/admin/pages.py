"""What the pages of the admin that are no lists have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from django.template.response import TemplateResponse

from sqlqueue.admin.permissions import ModelAdmin

# Seconds for which a request waits for transactions that publish. It occupies a worker of the web server meanwhile.
LOCK_TIMEOUT = 3.0


def show(
    model_admin: ModelAdmin,
    request: HttpRequest,
    template: str,
    title: object,
    context: Mapping[str, Any],
    app: str = "sqlqueue",
) -> TemplateResponse:
    """Return a page of a model's admin, with the context of its site. template: its name below admin/APP/, without the
    suffix."""
    site = model_admin.admin_site
    request.current_app = site.name
    base = {**site.each_context(request), "title": title, "opts": model_admin.opts}
    return TemplateResponse(request, f"admin/{app}/{template}.html", {**base, **context})
