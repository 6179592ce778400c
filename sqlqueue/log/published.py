"""What publishing returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Status = Literal["created", "updated", "ignored"]

CREATED: Final = "created"
UPDATED: Final = "updated"
IGNORED: Final = "ignored"
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class Published:
    """What publish returns.

    offset: of the message in the log; None while it is scheduled
    id: of the message, or of the one that kept it out
    status: `created`; `updated`: it has replaced a scheduled one; `ignored`: there was one already, and nothing has
        changed
    database: the alias of its database; "" if there is one log only
    """

    offset: int | None
    id: str
    status: Status
    database: str = ""

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

    @classmethod
    def of(cls, statuses: Sequence[Status] = (), ids: Sequence[str] = ()) -> PublishedMany:
        """Return what publish_many returns for messages with these statuses and ids."""
        return cls(list(ids), list(statuses), *(statuses.count(status) for status in STATUSES))
