"""What `unique_for` may be, for a topic and for a publish."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, Final, Literal

from sqlqueue.exceptions import SHORTEST_LIFE, InvalidMessage, seconds

KEY: Final = "key"  # as long as a message of the topic and key is pending
UniqueFor = Literal["key", False] | float | timedelta | None


def checked_unique_for(value: Any) -> float:
    """Return for how many seconds a pending message keeps others of its key out, infinity for as long as it is pending.

    Raises InvalidMessage for what is neither "key" nor a duration of a millisecond to ten years.
    """
    if isinstance(value, str) and value == KEY:
        return math.inf
    if isinstance(value, (str, bool)):
        raise InvalidMessage(
            f"unique_for must be 'key', seconds or a timedelta (and in a publish False for not at all), not {value!r}"
        )
    number = seconds(value, "unique_for")
    if number < SHORTEST_LIFE:
        raise InvalidMessage(
            f"unique_for must be at least a millisecond, not {value!r}: unique_for=False for not at all"
        )
    return number
