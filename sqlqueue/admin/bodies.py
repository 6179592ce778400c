"""Payloads of bytes in the admin: their size and type, and a download. They are never shown, nor run by a browser."""

from __future__ import annotations

import mimetypes

from django.db import models
from django.http import Http404, HttpResponse
from django.template.defaultfilters import filesizeformat

from sqlqueue.database.log import current_log
from sqlqueue.payloads.content_types import UNKNOWN, content_type_of
from sqlqueue.stats.bodies import Body


def described(body: Body) -> str:
    """Return the type and the size of bytes as lists show them."""
    return f"{body.content_type}, {filesizeformat(body.size)}"


def download(model: type[models.Model], key: int) -> HttpResponse:
    """Return the bytes of a message as a file to save. Raises Http404 if there are none."""
    rows = model._default_manager.using(current_log().alias).filter(pk=key).exclude(body=None)
    row = rows.only("pk", "body", "headers").first()
    if row is None:
        raise Http404
    kind = content_type_of(row.headers).partition(";")[0].strip()
    name = f"message-{key}{mimetypes.guess_extension(kind) or '.bin'}"
    # A publisher names the type: no browser may act on it.
    return HttpResponse(
        bytes(row.body),
        content_type=UNKNOWN,
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cache-Control": "private, no-store",
        },
    )
