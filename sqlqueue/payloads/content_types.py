"""The content type of a payload of bytes, in a header."""

from __future__ import annotations

import json
import re
from typing import Any

from sqlqueue.exceptions import InvalidMessage
from sqlqueue.payloads.versions import CONTENT_TYPE

UNKNOWN = "application/octet-stream"
CONTENT_TYPE_LENGTH = 255
# RFC 9110, section 8.3.1: type/subtype, and parameters.
TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
MEDIA_TYPE = re.compile(rf'{TOKEN}/{TOKEN}(?:[ \t]*;[ \t]*{TOKEN}=(?:{TOKEN}|"[ !#-\[\]-~]*"))*')


def checked_content_type(given: Any) -> str:
    """Return a content type, or refuse it."""
    if not isinstance(given, str) or not MEDIA_TYPE.fullmatch(given):
        raise InvalidMessage(f"content_type must be like 'application/pdf' or 'text/csv; charset=utf-8', not {given!r}")
    if len(given) > CONTENT_TYPE_LENGTH:
        raise InvalidMessage(f"content_type has {len(given)} characters; {CONTENT_TYPE_LENGTH} is the most")
    return given


def content_type_of(headers: Any) -> str:
    """Return the content type of a message of bytes with these headers, or with those of this JSON text. Plain SQL may
    have written anything there."""
    if isinstance(headers, str):
        try:
            headers = json.loads(headers)
        except (ValueError, RecursionError):
            return UNKNOWN
    found = headers.get(CONTENT_TYPE) if isinstance(headers, dict) else None
    return found if isinstance(found, str) and MEDIA_TYPE.fullmatch(found) else UNKNOWN
