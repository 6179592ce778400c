"""What a batch publishes at its end, and as the steps of its chain: as it is given, and as it is stored."""

from __future__ import annotations

from typing import Any

from sqlqueue.core.codec import decode
from sqlqueue.core.keys import KEY_LENGTH, checked_text
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.encoding import encode

Callback = tuple[Any, ...]  # (topic, payload) or (topic, payload, key)
MOST_STEPS = 100  # of a chain
MOST_OF_A_STEP = 1_000  # messages


def stored_callback(given: Any, name: str) -> dict[str, Any]:
    """Return a callback as it is stored. Raises InvalidMessage if it is none."""
    if not isinstance(given, (tuple, list)) or not 2 <= len(given) <= 3 or not isinstance(given[0], str):
        raise InvalidMessage(f"{name} must be (topic, payload) or (topic, payload, key), not {given!r}")
    topic, payload, key = (*given, "")[:3]
    return {"topic": topic, "payload": decode(encode(payload)), "key": checked_text(key, f"{name}: key", KEY_LENGTH)}


def stored_steps(then: Any) -> list[list[dict[str, Any]]]:
    """Return the steps of a chain as they are stored. Raises InvalidMessage for what are none."""
    if not isinstance(then, (tuple, list)):
        raise InvalidMessage(f"then must be a list of steps, each (topic, payload) or a list of these, not {then!r}")
    if len(then) > MOST_STEPS:
        raise InvalidMessage(f"then has {len(then)} steps, and a chain at most {MOST_STEPS}")
    if len(then) in (2, 3) and isinstance(then[0], str):
        then = [then]  # one step
    steps = []
    for number, step in enumerate(then, 1):
        several = isinstance(step, list) or (isinstance(step, tuple) and step and isinstance(step[0], tuple))
        messages = list(step) if several else [step]
        if not 1 <= len(messages) <= MOST_OF_A_STEP:
            raise InvalidMessage(
                f"step {number} of then has {len(messages)} messages, and one has 1 to {MOST_OF_A_STEP}"
            )
        steps.append([stored_callback(one, f"step {number} of then") for one in messages])
    return steps
