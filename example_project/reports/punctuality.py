"""What the periodic job has found out, read from the queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlqueue import get_status
from sqlqueue.models import Message

NAME = "punctuality"  # of the periodic schedule, and so of its consumer group
EVERY = timedelta(seconds=2)
TOPIC = "periodic"


@dataclass(frozen=True, slots=True)
class Punctuality:
    """What the last run has returned. runs: so far; mean_delay: in minutes."""

    runs: int
    finished_at: datetime
    departed: int
    mean_delay: float | None

    def __str__(self) -> str:
        late = "" if self.mean_delay is None else f", {self.mean_delay} minutes late on average"
        return f"{self.runs} runs; at {self.finished_at:%H:%M:%S} UTC {self.departed:,} had departed{late}"


def last_punctuality() -> Punctuality | None:
    """Return what the last run has returned; None if none has ended yet."""
    ticks = Message.objects.filter(topic=TOPIC, target_group=NAME).order_by("-offset")
    for number, id in enumerate(ticks.values_list("message_id", flat=True)[:2]):  # the last one may still run
        status = get_status(TOPIC, id=id)
        group = status.groups.get(NAME) if status else None
        if group and group.result and group.finished_at:
            return Punctuality(ticks.count() - number, group.finished_at, **group.result)
    return None
