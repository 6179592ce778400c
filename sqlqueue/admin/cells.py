"""What pages show of data: text and HTML in which nothing is obeyed by a browser, the beginnings of payloads, bytes as
a download; and the fields for times."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import wraps
from typing import Any

from django import forms
from django.db import models
from django.db.models import QuerySet
from django.db.models.functions import Cast, Left
from django.http import Http404, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.template.response import SimpleTemplateResponse
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.timezone import is_naive, make_aware

from sqlqueue.core import codec
from sqlqueue.core.logfmt import printable
from sqlqueue.database.log import Log
from sqlqueue.log.encoding import NOTHING
from sqlqueue.payloads.versions import UNKNOWN, content_type_of
from sqlqueue.stats.search import Body, bodies

# What no language needs, and a browser obeys or hides: control characters but for line ends and tabs, and what turns
# the direction, parts lines or is not seen. Joiners, marks of direction and spaces of no width stay: translations have
# them.
CONTROLS = r"\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
OBEYED = rf"[{CONTROLS}\u061c\u180e\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
SENT_BACK = r"<(?:input|option|button)\b[^>]*>|<textarea\b.*?</textarea>"  # by a form, as it is
BEGINNING = 100  # characters of a payload
MOST_OF_A_KEY = 24  # characters of a key or an id in a list
PARTS = re.compile(f"{OBEYED}|{SENT_BACK}", re.DOTALL)


def harmless(text: str) -> str:
    """Return a text whose control characters, and those that turn the direction of writing, are escaped as in JSON;
    lines and tabs stay."""
    return printable(text, keep="\n\t")


def with_harmless_page(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view on whose page no browser obeys a text: a name, an error, a title, a part of Django's own.
    Only the values that forms send back are left as they are."""

    @wraps(view)
    def shown(*args: Any, **options: Any) -> Any:
        response = view(*args, **options)
        if isinstance(response, SimpleTemplateResponse):
            response.add_post_render_callback(_escape)
        return response

    return shown


def _escape(response: SimpleTemplateResponse) -> None:
    html = response.content.decode(response.charset)
    response.content = PARTS.sub(lambda part: part[0] if len(part[0]) > 1 else printable(part[0]), html)


def indented(value: Any, most: int, cut: str = "…") -> str:
    """Return a value as indented JSON, harmless, to be read. After `most` characters there is `cut` on a line of its
    own."""
    text, whole = codec.indented(value, most)
    return harmless(text) if whole else harmless(text[:most]) + f"\n{cut}"


def editable(value: Any) -> str:
    """Return a value as JSON, harmless, which is the same value: a form sends it back. It is indented unless that makes
    it very long."""
    return harmless(codec.indented_or_compact(value))


def described(body: Body) -> str:
    """Return the type and the size of bytes as lists show them."""
    return f"{body.content_type}, {filesizeformat(body.size)}"


def download(rows: QuerySet[Any], key: int) -> HttpResponse:
    """Return the bytes of one of these messages as a file to save. Raises Http404 if there are none."""
    row = rows.filter(pk=key).exclude(body=None).defer(None).only("pk", "body", "headers").first()
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


def tag(text: object) -> str:
    """Return a text in a frame, for an unusual state."""
    return format_html('<strong class="sqlqueue-state">{}</strong>', text)


def code(text: str) -> str:
    """Return data in a fixed-width font; a dash if there is none."""
    return format_html("<code>{}</code>", harmless(text)) if text else "–"


def key_id(key: str, id: str | None) -> str:
    """Return a message's key, and its id in small print below. Both are cut to MOST_OF_A_KEY, but for their titles."""
    key, id = harmless(key), harmless(id or "")
    key_html = format_html('<code title="{}">{}</code>', key, Truncator(key).chars(MOST_OF_A_KEY)) if key else "–"
    if not id:
        return key_html
    return format_html('{}<div class="quiet" title="{}">{}</div>', key_html, id, Truncator(id).chars(MOST_OF_A_KEY))


def show_previews(model: type[models.Model], rows: Sequence[Any]) -> None:
    """Set `preview` of rows: the beginning of the payload as the database has it; of bytes, their type and size. One
    statement, and another one if there may be bytes, on the database that the rows were read from."""
    if not rows:
        return
    log = Log.of(rows[0]._state.db)
    texts = model._default_manager.using(log.alias).filter(pk__in=[row.pk for row in rows])
    beginning = Left(Cast("payload", models.TextField()), BEGINNING + 1)
    found = dict(texts.annotate(beginning=beginning).values_list("pk", "beginning"))
    bytes_of = bodies(log, model, empty) if (empty := [key for key, text in found.items() if text == NOTHING]) else {}
    for row in rows:
        shown = described(bytes_of[row.pk]) if row.pk in bytes_of else found.get(row.pk)
        row.preview = harmless(Truncator(shown or "").chars(BEGINNING))


class MomentField(forms.DateTimeField):
    """A time in the site's time zone. Its value is aware, also with USE_TZ = False."""

    widget = forms.DateTimeInput({"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")

    def to_python(self, value: Any) -> datetime | None:
        """Return the time; None for an empty field."""
        at = super().to_python(value)
        if at is None or not is_naive(at):
            return at
        try:
            return make_aware(at)
        except OverflowError:  # at an end of the calendar
            return at.replace(tzinfo=timezone.utc)


class StoredMomentField(MomentField):
    """A stored time that users may change.

    The field shows no zone, so in the hour that is repeated when clocks are set back its text stands for two times. A
    text that the user has not changed means the stored time.
    """

    stored: datetime | None = None  # in the site's zone

    def to_python(self, value: Any) -> datetime | None:
        """Return the time; None for an empty field."""
        if self.stored is not None and isinstance(value, str) and _parsed(value) == self.stored.replace(tzinfo=None):
            return self.stored
        return super().to_python(value)


def _parsed(text: str) -> datetime | None:
    try:
        return parse_datetime(text.strip())
    except ValueError:
        return None
