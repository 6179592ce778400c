"""Which message a replayed one is a copy of, and where a copy is. Each by an index."""

from __future__ import annotations

from sqlqueue.core.outcomes import REPLAYED
from sqlqueue.database.log import Log
from sqlqueue.models import Message, Receipt


def original_of(log: Log, copy: str) -> int | None:
    """Return the offset of the message whose dead letter was replayed as the message of this id; None if there is none,
    or its receipt is not kept any more. The message may have been collected."""
    receipts = Receipt.objects.using(log.alias).filter(worker=copy, outcome=REPLAYED)
    return receipts.values_list("message_offset", flat=True).first()


def copy_of(log: Log, topic: str, id: str, key: str) -> int | None:
    """Return the offset of a copy; None if it is not in this log."""
    copies = Message.objects.using(log.alias).of_id(topic, id, key).values_list("offset", flat=True)
    return next(iter(copies), None)
