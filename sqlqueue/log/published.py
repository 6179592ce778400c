"""What publishing returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["created", "updated", "ignored"]

CREATED: Final = "created"
UPDATED: Final = "updated"
IGNORED: Final = "ignored"


@dataclass(frozen=True, slots=True)
class Published:
    """What publish returns.

    offset: of the message in the log, None while it is scheduled. status: `created`; `updated` if it has replaced a
    scheduled message of its id, or with unique_for of its key; `ignored` if there was one of its topic, key and id
    already, in the log or scheduled, or with unique_for a pending one of its topic and key, and nothing has changed. id
    and offset are then those of the message that is there. shard: the name of the shard that it is on, or is on its way
    to; "" without SHARDS.
    """

    offset: int | None
    id: str
    status: Status
    shard: str = ""

    @property
    def created(self) -> bool:
        """Whether the message is a new one."""
        return self.status == CREATED


@dataclass(frozen=True, slots=True)
class PublishedMany:
    """What publish_many returns: the ids and the statuses in the order given (None if the messages came from an
    iterator), and how many of the messages were created, updated and ignored. The id of one that was ignored, or has
    replaced another, is that of the message that is there."""

    ids: list[str] | None
    statuses: list[Status] | None
    created: int
    updated: int
    ignored: int
