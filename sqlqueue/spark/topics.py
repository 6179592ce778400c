"""Creation of topics by executors, at their first use and if they are declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX

TopicValues = tuple[int, int, "float | None", str]  # partitions, priorities, retention, history


@dataclass(frozen=True)
class Topics:
    """The values of new topics: those that SQLQUEUE names, and all others."""

    named: Mapping[str, TopicValues]
    others: TopicValues
    strict: bool  # STRICT_TOPICS: only declared topics are created
    shards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of new topics, by name; "": of any other one
    home: str = ""  # the shard of DATABASE

    def may_create(self, name: str) -> bool:
        """Tell whether a topic that does not exist may be created."""
        return not self.strict or name in self.named

    def values(self, name: str) -> tuple[object, ...]:
        """Return the values of a new topic's row."""
        partitions, priorities, retention, history = self.named.get(name, self.others)
        return name, partitions, priorities, None if name.endswith(DEAD_LETTER_SUFFIX) else retention, history

    def shards_of(self, name: str) -> tuple[str, ...]:
        """Return the shards of a new topic."""
        return self.shards.get(name, self.shards.get("", ("",)))
