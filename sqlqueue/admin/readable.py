"""Data of publishers and handlers as pages show it: JSON indented up to what is shown, and nothing that a browser would
obey or hide."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.template.response import SimpleTemplateResponse

from sqlqueue.core import indented as indentation
from sqlqueue.core.logfmt import printable

# What no language needs, and a browser obeys or hides: control characters but for line ends and tabs, and what turns
# the direction, parts lines or is not seen. Joiners, marks of direction and spaces of no width stay: translations have
# them.
CONTROLS = r"\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
OBEYED = rf"[{CONTROLS}\u061c\u180e\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
SENT_BACK = r"<(?:input|option|button)\b[^>]*>|<textarea\b.*?</textarea>"  # by a form, as it is
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
    text, whole = indentation.indented(value, most)
    return harmless(text) if whole else harmless(text[:most]) + f"\n{cut}"


def editable(value: Any) -> str:
    """Return a value as JSON, harmless, which is the same value: a form sends it back. It is indented unless that makes
    it very long."""
    return harmless(indentation.indented_or_compact(value))
