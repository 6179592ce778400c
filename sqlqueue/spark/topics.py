"""How executors create a topic at its first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX

TopicValues = tuple[int, int, "float | None", str]  # partitions, priorities, retention, history


@dataclass(frozen=True)
class Topics:
    """How topics are created at their first use: those that SQLQUEUE names, and all others."""

    named: Mapping[str, TopicValues]
    others: TopicValues

    def values(self, name: str) -> tuple[object, ...]:
        """Return the values of a new topic's row."""
        partitions, priorities, retention, history = self.named.get(name, self.others)
        return name, partitions, priorities, None if name.endswith(DEAD_LETTER_SUFFIX) else retention, history
