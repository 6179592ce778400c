"""A delivery: a message as given to a handler."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, Generic, overload

from django.utils.functional import cached_property

from sqlqueue.conf import settings
from sqlqueue.core.codec import decode
from sqlqueue.core.keys import checked_text
from sqlqueue.core.settle_plan import Attempt
from sqlqueue.database.clock import moment
from sqlqueue.database.log import Log
from sqlqueue.exceptions import InvalidMessage, LeaseLost, Postpone, Reject, Unknown
from sqlqueue.exceptions import seconds as checked_seconds
from sqlqueue.log.results import Reported, reply_text
from sqlqueue.models.outcome import NOTE_LENGTH
from sqlqueue.payloads.topic_types import PayloadReader
from sqlqueue.payloads.versions import added, callers, content_type_of

TRIED_EVERY: Final = 10.0  # seconds
_loaded: Final = time.monotonic()  # when this process's code was


def unknown(reason: object, entered: datetime) -> Postpone | Reject:
    """Return what settles it: it waits, uncharged, for a process that has the code, until UNKNOWN_FOR has passed both
    since it entered the log and since this process has begun; then it is a dead letter."""
    age = (datetime.now(timezone.utc) - entered).total_seconds()
    left = settings.UNKNOWN_FOR - min(age, time.monotonic() - _loaded)
    if left <= 0:
        return Reject(f"no process that has what it needs had it within UNKNOWN_FOR: {reason}")
    return Postpone(f"it waits for a process that has what it needs: {reason}", delay=min(left, TRIED_EVERY))


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    class AnyPayload:
        """The payload of a bare `Delivery`, for type checkers: it may be anything."""

    Payload = TypeVar("Payload", default=AnyPayload)

    class _PayloadOf:
        """`delivery.payload`: an instance of what its delivery names, or anything."""

        @overload
        def __get__(self, delivery: Delivery[AnyPayload], owner: object = None) -> Any: ...
        @overload
        def __get__(self, delivery: Delivery[Payload], owner: object = None) -> Payload: ...
        def __get__(self, delivery: Any, owner: object = None) -> Any: ...
else:
    from typing import TypeVar

    Payload = TypeVar("Payload")

MOST_PROGRESS = 2**53  # up to which the column tells whole numbers apart


class Delivery(Generic[Payload]):
    """The message, the attempt (1 is the first), and the group that it is for. For type checkers, `Delivery[Order]`
    has instances of Order as payloads."""

    def __init__(self, log: Log, attempt: Attempt, payloads: PayloadReader | None = None):
        self._log, self._attempt, self._payloads = log, attempt, payloads
        self._message = attempt.message  # an ack that waits drops it

    if TYPE_CHECKING:
        payload = _PayloadOf()
    else:

        @cached_property
        def payload(self):
            """The published value (of bytes: bytes), or the instance of its payload type; decoded at its first use.

            Raises PayloadMismatch, a Reject, if it does not fit the type: not caught, it makes the message a dead
            letter. Of a version that is newer than this process's it is Postpone, or Reject after UNKNOWN_FOR.
            """
            message = self._message
            if self._payloads:
                try:
                    return self._payloads.read(message.payload, message.headers, message.body)
                except Unknown as error:
                    raise unknown(error, self.created_at) from error
            return decode(message.payload) if message.body is None else bytes(message.body)

    @property
    def content_type(self) -> str | None:
        """The type of a payload of bytes, "application/octet-stream" if it was published without one; None for JSON."""
        message = self._message
        return None if message.body is None else content_type_of(decode(message.headers))

    @cached_property
    def headers(self) -> dict[str, Any]:
        """The headers that the publisher gave, {} if there were none."""
        return callers(decode(self._message.headers) or {})

    @property
    def own_headers(self) -> dict[str, Any]:
        """The headers that the queue and its apps have added, {} if there are none."""
        return added(decode(self._message.headers) or {})

    @property
    def key(self) -> str:
        """The ordering key; "" for none."""
        return self._message.key

    @property
    def id(self) -> str:
        """The message's id."""
        return self._message.id

    @property
    def offset(self) -> int:
        """The message's position in the log."""
        return self._message.offset

    @property
    def attempt(self) -> int:
        """1 at the first delivery; postponed and released ones are not counted."""
        return self._attempt.number

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self._attempt.lease.ref.topic

    @property
    def database(self) -> str:
        """The alias of the database that it is on; "" if there is one log only."""
        return self._log.label

    @property
    def partition(self) -> int:
        """The partition that its key belongs to."""
        return self._attempt.lease.ref.partition

    @property
    def priority(self) -> int:
        """Lower ones are delivered first."""
        return self._attempt.lease.ref.priority

    @property
    def group(self) -> str:
        """The consumer group that it is delivered for."""
        return self._attempt.lease.ref.group

    @property
    def worker(self) -> str:
        """The consumer process that has it: the name of its subscriber."""
        return self._attempt.lease.holder

    @property
    def deaths(self) -> int:
        """How many consumer processes in a row have ended, or lost their lease, while they had it."""
        return self._attempt.deaths

    @property
    def fence(self) -> tuple[int, int, int]:
        """(offset, fencing token, serial): it grows with each later delivery of the message, and of its replay."""
        return self.offset, self._attempt.lease.token, self._attempt.serial

    @cached_property
    def created_at(self) -> datetime:
        """When it entered the log, by the database's clock, in UTC."""
        return moment(self._message.created)

    @cached_property
    def published_at(self) -> datetime:
        """When it was published, for now or for later, by the database's clock, in UTC."""
        published = self._message.published
        return self.created_at if published is None else moment(published)

    @cached_property
    def due_at(self) -> datetime | None:
        """When it was due, in UTC, if it was scheduled; else None."""
        due = self._message.due
        return None if due is None else moment(due)

    def extend(self, seconds: float | timedelta) -> None:
        """Let the handler run for so many seconds from now before it counts as timed out; no attempt is charged.

        Raises LeaseLost if the message is not this consumer's any more: stop working on it, another process does.
        """
        self.check_lease()
        self._attempt.deadline = time.monotonic() + checked_seconds(seconds, "seconds")

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far the handler is: `done` of `total`, in its own units (from 0 to 2**53), with a note of up to 255
        characters. get_status and the admin show it while the handler runs.

        It takes no time: the last report of each second is stored, by another thread and connection. Raises
        InvalidMessage for what cannot be stored, and LeaseLost if the message is not this consumer's any more.
        """
        for value, name in ((done, "done"), (total, "total")):
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST_PROGRESS
            if not number and not (value is None and name == "total"):
                raise InvalidMessage(f"progress: {name} must be a number from 0 to {MOST_PROGRESS}, not {value!r}")
        checked_text(note, "progress: note", NOTE_LENGTH)
        self.check_lease()
        self._attempt.lease.progress[self._attempt] = Reported(done, total, note)

    def reply(self, value: Any) -> None:
        """Say what the caller of this message gets, who waits in `call`: JSON, sent with the ack, as what the handler
        returns is. The first reply of a delivery counts, also before what the handler returns; a message that was
        published without a call takes one, too, for keep_results.

        Raises InvalidResult for what cannot be stored, and LeaseLost if the message is not this consumer's any more.
        """
        self.check_lease()
        text = reply_text(self._log, value)
        if self._attempt.reply is None:
            self._attempt.reply = text

    def check_lease(self) -> None:
        """Raise LeaseLost if the partition has another owner, or this delivery has timed out."""
        attempt = self._attempt
        if attempt.lease.lost or attempt.outcome is not None:
            raise LeaseLost

    def __repr__(self) -> str:
        return f"<Delivery {self.topic}[{self.partition}]@{self.offset} attempt {self.attempt} for {self.group}>"
