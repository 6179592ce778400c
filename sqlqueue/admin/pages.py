"""Pages of the admin that are no lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from django.template.response import TemplateResponse

from sqlqueue.admin.permissions import ModelAdmin


def show(
    model_admin: ModelAdmin, request: HttpRequest, template: str, title: object, context: Mapping[str, Any]
) -> TemplateResponse:
    """Return a page of a model's admin, in the site's frame. template: its name below admin/sqlqueue/."""
    site = model_admin.admin_site
    request.current_app = site.name
    frame = {**site.each_context(request), "title": title, "opts": model_admin.opts}
    return TemplateResponse(request, f"admin/sqlqueue/{template}.html", {**frame, **context})
