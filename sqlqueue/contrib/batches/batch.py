"""Batches as publishers see them: made, filled and sealed by a `with` block."""

from __future__ import annotations

import copy
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlqueue.contrib.batches import ends
from sqlqueue.contrib.batches.callbacks import Callback, stored_callback, stored_steps
from sqlqueue.contrib.batches.members import member_of
from sqlqueue.contrib.batches.models import NAME_LENGTH
from sqlqueue.contrib.batches.models import Batch as BatchRow
from sqlqueue.contrib.batches.publishing import Block
from sqlqueue.core.keys import checked_text
from sqlqueue.core.new_message import OPTIONS, NewMessage, PublishOptions
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import ConfigurationError, InvalidMessage, seconds
from sqlqueue.log.encoding import encode
from sqlqueue.log.publish import MOST_AT_ONCE, check, in_block
from sqlqueue.log.published_topic import Published, PublishedMany
from sqlqueue.twins import refuse_in_async

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sqlqueue.consumers.handlers.delivery import Delivery

logger = logging.getLogger("sqlqueue")


INSERT = """
    INSERT INTO sqlqueue_batch (id, name, parent, callbacks, deadline_at) VALUES (%s, %s, %s, %s, {deadline})
"""


class Batch:
    """Messages that are followed as one group of work.

    with Batch(on_finish=("imports", {"file": 7})) as batch:
        batch.publish("rows", {"n": 1})

    on_finish: (topic, payload) or (topic, payload, key), published once every member is acked or a dead letter
    on_success: published once all are acked, be it after a replay
    on_failure: published at the first dead letter, or at the deadline
    deadline: seconds or a timedelta in which it has to finish
    then: the steps of a chain, each a callback or a list of them; published as members once all before are acked
    parent: a batch that is not finished before this one, and fails with it
    name: shown in the admin

    The block is one transaction on DATABASE: after an exception nothing of it is there. Tasks that are enqueued in it
    are members.

    Raises InvalidMessage for callbacks that cannot be published, and ConfigurationError for what is used wrongly.
    """

    def __init__(
        self,
        *,
        name: str = "",
        on_success: Callback | None = None,
        on_finish: Callback | None = None,
        on_failure: Callback | None = None,
        deadline: float | timedelta | None = None,
        then: Sequence[Any] = (),
        parent: Batch | None = None,
    ):
        self.id = uuid.uuid4().hex
        self.name = checked_text(name, "name of the batch", NAME_LENGTH)
        if parent is not None and not isinstance(parent, Batch):
            raise ConfigurationError(f"parent must be a Batch, such as Batch.of(delivery), not {parent!r}")
        self._parent = parent
        self._deadline = None if deadline is None else seconds(deadline, "deadline")
        given = {"success": on_success, "finish": on_finish, "failure": on_failure}
        self._given = {when: stored_callback(one, f"on_{when}") for when, one in given.items() if one is not None}
        self._steps = stored_steps(then)
        self._still_open: Callable[[], None] = self._not_begun
        self._members: Block | None = None  # while the block is open

    @classmethod
    def of(cls, delivery: Delivery[Any]) -> Batch | None:
        """Return the batch that a delivery's message belongs to, to publish more members of it until its handler
        returns; None if it is in none."""
        member = member_of(delivery.own_headers)
        if member is None:
            return None
        batch = cls()
        batch.id, batch._still_open = member.batch, delivery.check_lease
        return batch

    def _not_begun(self) -> None:
        raise ConfigurationError("the batch is not open: publish to it in its `with` block")

    def _sealed(self) -> None:
        raise ConfigurationError(
            f"batch {self.id} is sealed: publish to it in its `with` block, or from the handler of one of its members "
            "(Batch.of(delivery))"
        )

    def __enter__(self) -> Batch:
        refuse_in_async("Batch", "await sync_to_async(…)")
        if self._still_open != self._not_begun:
            raise ConfigurationError("a batch has one `with` block: make another Batch")
        log = home_log()
        for one in [*self._given.values(), *(one for step in self._steps for one in step)]:
            check(one["topic"], [NewMessage(one["payload"], key=one["key"])])
        callbacks: dict[str, Any] = dict(self._given)
        if self._steps:
            callbacks["then"] = self._steps
        parent = ""
        if self._parent is not None:
            self._parent._still_open()
            parent = self._parent.id
        values: list[object] = [self.id, self.name, parent, encode(callbacks, "callbacks")]
        if self._deadline is not None:
            values.append(round(self._deadline * 1_000_000))
        text = INSERT.replace("{deadline}", "NULL" if self._deadline is None else "{later}")
        with ExitStack() as block:
            block.enter_context(log.dialect.writers)
            block.enter_context(log.atomic())
            retries.run_statement(log, log.execute, text, values)
            block.callback(in_block.reset, in_block.set(self._publish_task))
            self._block, self._members = block.pop_all(), Block(self.id)
        self._still_open = self._in_its_thread
        self._connection = log.connection  # of this thread
        return self

    def _in_its_thread(self) -> None:
        if home_log().connection is not self._connection:
            raise ConfigurationError(
                "the block of a batch is one transaction, and so one thread's: publish its members in that thread"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._still_open = self._sealed
        if kind is not None:
            self._block.__exit__(kind, error, trace)
            return
        with self._block:
            self._seal(home_log())

    def _seal(self, log: Log) -> None:
        rows = BatchRow.objects.using(log.alias).filter(id=self.id, sealed_at=None)
        retries.run_statement(log, rows.update, sealed_at=DatabaseNow())
        log.on_commit(lambda: ends.check_quietly(log, [self.id]))

    def publish(self, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> Published:
        """Publish a message as a member; options as in publish, but for on_conflict="replace".

        What is ignored, because its id is taken, becomes no member. Raises what publish raises, and ConfigurationError
        once the batch is sealed.
        """
        refuse_in_async("Batch.publish", "await sync_to_async(batch.publish)(…)")
        self._still_open()
        if unknown := set(options) - OPTIONS:
            raise TypeError(f"Batch.publish has no option {sorted(unknown)[0]!r}")
        message = _member(NewMessage(payload, **options))
        return retries.run(home_log(), lambda: self._in_transaction().publish(topic, message))

    def publish_many(self, topic: str, messages: Iterable[NewMessage | Any]) -> PublishedMany:
        """Publish many messages as members, all or none of them, see publish_many."""
        refuse_in_async("Batch.publish_many", "await sync_to_async(batch.publish_many)(…)")
        self._still_open()
        if isinstance(messages, Iterator):
            with home_log().atomic():
                counts = Counter[str]()
                while some := list(islice(messages, MOST_AT_ONCE)):
                    counts.update(self._publish_many(topic, some).statuses or ())
            return PublishedMany(None, None, *(counts[status] for status in ("created", "updated", "ignored")))
        return self._publish_many(topic, list(messages))

    def _publish_many(self, topic: str, messages: Sequence[NewMessage | Any]) -> PublishedMany:
        members = [_member(copy.copy(one) if isinstance(one, NewMessage) else NewMessage(one)) for one in messages]
        return retries.run(home_log(), lambda: self._in_transaction().publish_many(topic, members))

    def _in_transaction(self) -> Block:
        """Return what publishes in the transaction that is open: the block's, or a handler's for one call."""
        return self._members or Block(self.id)

    def _publish_task(self, topic: str, message: NewMessage) -> Published:
        self._still_open()
        return self._in_transaction().publish(topic, message)

    def cancel(self) -> bool:
        """Publish no callback of it any more; its members are delivered all the same. False: it was over already."""
        refuse_in_async("Batch.cancel", "await sync_to_async(batch.cancel)(…)")
        return ends.cancel(home_log(), self.id)

    def __repr__(self) -> str:
        return f"<Batch {self.id}{f' {self.name!r}' if self.name else ''}>"


def _member(message: NewMessage) -> NewMessage:
    if message.on_conflict == "replace":
        raise InvalidMessage(
            "on_conflict='replace' is not for the members of a batch, which waits for what was to be replaced: "
            "cancel() that, and publish"
        )
    return message
