"""The ordering queues of one execution that are closed: a message in them is to be settled, or delivered again, before
those behind it."""

from __future__ import annotations

from sqlqueue.core.settle_plan import Attempt


class ClosedQueues:
    """What a thread knows, while it runs an execution, of the order that the ordering of its consumer keeps."""

    def __init__(self, ordering: str):
        self._ordering = ordering
        self._closed: dict[str, int] = {}  # by name: the first offset that waits

    def close(self, attempt: Attempt) -> None:
        """Let what is behind a message wait for it."""
        if (name := self._name(attempt)) is not None:
            self._closed[name] = min(attempt.offset, self._closed.get(name, attempt.offset))

    def holds(self, attempt: Attempt) -> bool:
        """Tell whether a message has to wait for an earlier one."""
        if not self._closed or (name := self._name(attempt)) is None:
            return False
        return attempt.offset > self._closed.get(name, attempt.offset)

    def _name(self, attempt: Attempt) -> str | None:
        if self._ordering == "key":
            return attempt.message.key or None
        return "" if self._ordering == "partition" else None
