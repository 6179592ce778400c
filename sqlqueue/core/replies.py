"""The header by which a caller asks for a reply. Pure."""

from __future__ import annotations

from typing import Any

from sqlqueue.core.codec import as_text, decode
from sqlqueue.exceptions import LONGEST_DELAY

REPLY = "sqlqueue-reply"  # for how many seconds what comes of the message is stored, for its caller
QUOTED = f'"{REPLY}"'


def reply_kept(headers: Any) -> float | None:
    """Return for how many seconds the reply to a message with these headers, as the database gave them, is stored; None
    if nothing asks for one. What plain SQL may have stored there, and is no positive number, asks for none."""
    if not headers:
        return None
    text = as_text(headers)
    if text is None or QUOTED not in text:
        return None
    stored = decode(text)
    kept = stored.get(REPLY) if isinstance(stored, dict) else None
    wanted = isinstance(kept, (int, float)) and not isinstance(kept, bool) and 0 < kept <= 2 * LONGEST_DELAY
    return float(kept) if wanted and kept is not None else None
