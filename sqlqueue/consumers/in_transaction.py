"""An atomic handler's run: the handler and its ack in one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error, transaction

from sqlqueue.consumers.connections import Undisturbed, restore, states
from sqlqueue.core.lines import line
from sqlqueue.core.outcomes import SUPERSEDED, UNSTARTED, Outcome, committed_at
from sqlqueue.core.plan import Hand, Run
from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect
from sqlqueue.database.faults import Fault
from sqlqueue.database.guard import Guard
from sqlqueue.exceptions import LeaseLost, Settlement
from sqlqueue.log.atomic import settle_run, was_committed

logger = logging.getLogger("sqlqueue")

NOT_BEGUN_PAUSE = 0.1  # seconds
TRIES = 3  # of a handler whose transaction met a deadlock: rolled back, so it is simply run again


class InTransaction:
    """Runs the handlers of one atomic consumer."""

    def __init__(self, alias: str, name: str):
        self.alias, self.name = alias, name

    def run(
        self, run: Run, hands: list[Hand], handle: Callable[[], Any], started: Callable[[list[Hand]], bool]
    ) -> Outcome:
        """Run a handler and its ack in one transaction. Every error rolls both back."""
        before = states()
        try:
            return self._run(run, hands, handle, started)
        finally:
            restore(before)

    def _run(
        self, run: Run, hands: list[Hand], handle: Callable[[], Any], started: Callable[[list[Hand]], bool]
    ) -> Outcome:
        for attempt in range(1, TRIES + 1):
            committed: list[bool] = []
            begun = handled = settled = False
            try:
                with dialect(self.alias).writers, transaction.atomic(using=self.alias):
                    guard = Guard(self.alias)
                    begun = True
                    # Opening it may have taken its time: SQLite has one writer, and a server may be slow to answer.
                    if not started(hands):
                        return UNSTARTED
                    transaction.on_commit(lambda: committed.append(True), using=self.alias)  # noqa: B023  run by this turn
                    with Undisturbed():
                        handle()
                    handled = True
                    guard.release()
                    moved_to = settle_run(self.alias, run, hands, guard)
                    settled = True
            except Settlement:
                raise
            except Exception as error:
                if committed:
                    logger.error(line("commit_hook_failed", **self._facts(hands), error=error), exc_info=error)
                    return committed_at(moved_to)
                if handled and isinstance(error, LeaseLost):
                    return SUPERSEDED
                fault = faults.classify(error) if isinstance(error, Error) else Fault.OTHER
                if fault is Fault.GONE and settled:
                    return self._after_lost_reply(run, hands, error)
                if fault is Fault.CONTENTION and attempt < TRIES:
                    logger.info(line("handler_rerun", **self._facts(hands), error=error))
                    time.sleep(0.01 * attempt)
                    continue
                if fault in (Fault.GONE, Fault.CONTENTION) and not begun:
                    return self._not_begun(hands, error)
                raise
            return committed_at(moved_to)
        raise AssertionError("unreachable")

    def _not_begun(self, hands: list[Hand], error: Exception) -> Outcome:
        """The transaction could not be opened (this thread's connection had been lost while nobody looked): no attempt
        is charged, for the handler has seen nothing of it."""
        logger.info(line("transaction_not_begun", **self._facts(hands), error=error))
        faults.drop_connection(self.alias)
        time.sleep(NOT_BEGUN_PAUSE)
        return UNSTARTED

    def _facts(self, hands: Sequence[Hand]) -> dict[str, Any]:
        address = hands[0].stream.address
        place = {"group": address.group, "topic": address.topic, "partition": address.partition}
        return {"handler": self.name, **place, "offset": hands[0].offset, "count": len(hands)}

    def _after_lost_reply(self, run: Run, hands: list[Hand], error: Exception) -> Outcome:
        """The commit got no reply: ask until the database tells whether it came through, or the lease is over."""
        logger.warning(line("commit_in_doubt", **self._facts(hands), error=error))
        faults.drop_connection(self.alias)
        stream = run.stream
        try:
            known = faults.patiently(
                self.alias, faults.run, self.alias, was_committed, self.alias, run, hands, give_up=lambda: stream.lost
            )
        except LeaseLost:
            return SUPERSEDED
        if known is None:
            return SUPERSEDED
        position, acked = known
        if not acked:
            raise error
        return committed_at(position)
