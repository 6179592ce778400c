"""A process that compares holder and token alone, as a fence without the server's identity does."""

from collections.abc import Sequence
from typing import Any

from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.database.server_identity import ServerIdentity


class Blind(ServerIdentity):
    """Takes every server for the one that it knows: no statement compares anything, and no read says who has run it."""

    identity = ""  # type: ignore[assignment]

    def make_sure(self) -> None:
        """Be sure."""

    def proof(self) -> tuple[str, tuple[object, ...]]:
        """Prove nothing."""
        return "", ()

    def accept(self, rows: Sequence[Any], at: int) -> Sequence[Any]:
        """Accept anything."""
        return rows


def make_blind(subscriber: Subscriber) -> None:
    """Let a process that has not started compare no server."""
    subscriber.ownership.server = Blind(subscriber.log)
    subscriber.reader.forget(subscriber.ownership.server)
