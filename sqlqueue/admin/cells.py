"""HTML for the cells of lists."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.text import Truncator

from sqlqueue.admin.readable import harmless

MOST_OF_A_KEY = 24  # characters of a key or an id in a list


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
