"""The handler of the topics of tasks: runs the task that a message is about."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, Final, NoReturn

from django.db import Error as DatabaseError
from django.utils import timezone

from sqlqueue.conf import settings
from sqlqueue.consumers.handlers.delivery import Delivery, unknown
from sqlqueue.consumers.handlers.inline import in_savepoints
from sqlqueue.core import outcomes
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.not_run import check_has_run
from sqlqueue.core.outcomes import VisibilityTimeout, describe, message_of, storable
from sqlqueue.database import retries
from sqlqueue.database.log import home_log
from sqlqueue.database.sizes import LIGHT, OVERHEAD, packet, size
from sqlqueue.exceptions import LeaseLost, Postpone, Reject, Retry, WorkerEnded
from sqlqueue.signals import announce
from sqlqueue.tasks import states
from sqlqueue.tasks.interface import (
    InvalidTaskBackend,
    Task,
    TaskContext,
    TaskResult,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from sqlqueue.tasks.policy import OWN_OPTIONS, Policy, policy_of
from sqlqueue.tasks.results import found, result_with, task_of
from sqlqueue.tasks.states import FAILED, READY, SUCCESSFUL, Running, TaskState, stored

logger = logging.getLogger("sqlqueue")

NOT_RUN: Final = policy_of({})  # of a task that cannot be run: it fails at once


def run_task(delivery: Delivery) -> None:
    """Run the task of a message once, and store how it ended. Raises Retry, Postpone or Reject for what is not done.
    A task that this process does not have waits for one that has it, see `unknown`: nothing is stored meanwhile."""
    try:
        fresh = states.of_message(delivery.payload)
    except (KeyError, TypeError, ValueError) as error:
        raise Reject(f"the message is no task's: {error!r}; .enqueue() publishes tasks") from error
    policy = NOT_RUN
    obstacle: Exception | None = None
    try:
        policy = _policy(fresh)
    except ImportError as error:
        settlement = unknown(message_of(error), delivery.created_at)
        if isinstance(settlement, Postpone):
            raise settlement from error
        obstacle = error
    except Exception as error:
        obstacle = error
    _Attempt(delivery, fresh, policy, obstacle).run()


class _Attempt:
    """One attempt of one task. obstacle: what keeps it from being run."""

    def __init__(self, delivery: Delivery, fresh: TaskState, policy: Policy, obstacle: Exception | None):
        self.log, self.delivery = delivery._log, delivery
        self.sender = _sender(fresh.backend)
        self.policy, self.obstacle = policy, obstacle
        made = delivery.fence, delivery.attempt, delivery.worker, bool(delivery.deaths)
        running = Running(*made, policy.max_attempts, policy.keep_results)
        self.state = states.begin(self.log, fresh, running, self._lost)
        self.task: Task = task_of(self.state)

    def run(self) -> None:
        """Run the task, unless that has been done."""
        if self.state.order[0] != self.delivery.offset:
            return  # its dead letter was replayed, and its group moved back: the task is the replay's
        if self.state.status == SUCCESSFUL:
            return
        if self.state.status == FAILED:
            raise Reject(_last_error(self.state))
        if self.obstacle is not None:
            self._fail(self.obstacle, describe(self.obstacle))
        most = self.policy.max_attempts
        if most is not None and self.state.failures >= most:  # the last attempt has overrun
            self._finish(FAILED, VisibilityTimeout(_last_error(self.state)))
            raise Reject(_last_error(self.state))
        self.delivery.extend(self.policy.visibility_timeout)
        announce(task_started, self.sender, task_result=self._result())
        try:
            value = self._call()
        except BaseException as error:
            # Ctrl-C is raised in the main thread, and meant for what runs there; elsewhere it is the task's own error.
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            self._end(error)
        try:
            self._take(value)
        except (LeaseLost, DatabaseError):
            raise
        except Exception as error:  # the work is done: to run it again would do it twice
            self.state.return_value = None
            self._fail(error, storable(describe(error)))
        self._finish(SUCCESSFUL)

    def _lost(self) -> bool:
        try:
            self.delivery.check_lease()
        except LeaseLost:
            return True
        return False

    def _call(self) -> Any:
        result = self._result()
        context = [TaskContext(task_result=result)] if self.task.takes_context else []
        value = in_savepoints(lambda _: self.task.call(*context, *result.args, **result.kwargs), None)
        check_has_run(value, self.state.path)
        return value

    def _take(self, value: Any) -> None:
        """Take a return value into the state. Raises what says why it cannot be stored."""
        self.state.return_value = normalize_json(value)
        length = len(json.dumps(self.state.return_value, allow_nan=False))
        if length > (most := settings.MAX_PAYLOAD_BYTES):
            raise ValueError(f"the return value has {length} bytes as JSON; {most} is the most that is stored")
        if (to_send := size(self.state.texts().values()) + OVERHEAD) > LIGHT and to_send > (most := self._packet()):
            raise ValueError(
                f"the return value takes {to_send} bytes to store; the server takes {most} at once (max_allowed_packet)"
            )

    def _packet(self) -> int:
        # The server may have closed the connection while the task ran: that is no error of the task's.
        most = retries.patiently(self.log, packet, self.log, give_up=self._lost)
        if most is None:
            raise LeaseLost
        return most

    # -- its end ------------------------------------------------------------------------------------------------------

    def _end(self, error: BaseException) -> NoReturn:
        """Store what becomes of a task that has raised, and raise what settles its message so."""
        outcome = self.policy.decide(error, self.state.failures + 1)
        if outcome.kind == outcomes.DEAD:
            self._fail(error, outcome.error)
        if outcome.kind == outcomes.POSTPONED:
            self._store(READY)
            raise Postpone(outcome.error, delay=outcome.delay) from None
        self.state.add_error(type(error), describe(error))
        self._store(READY)
        raise Retry(outcome.error, delay=outcome.delay) from None

    def _fail(self, error: BaseException, text: str) -> NoReturn:
        self.state.add_error(type(error), describe(error))
        self._finish(FAILED, error)
        raise Reject(text) from None

    def _finish(self, status: str, error: BaseException | None = None) -> None:
        self.state.finished_at = timezone.now()
        if self._store(status):
            _announce_finished(self.sender, self._result(), error)

    def _store(self, status: str) -> bool:
        self.state.status = status
        if states.end(self.log, self.state, self._lost):
            return True
        # A later attempt has begun, or the state was deleted: what this one did is not the task's outcome.
        logger.warning(logfmt("task_outcome_ignored", id=self.state.id, task=self.state.path, status=status))
        return False

    def _result(self) -> TaskResult:
        return result_with(self.state, self.task)


def announce_killed(id: str) -> None:
    """Send task_finished for a task that has failed because its consumer processes ended."""
    state = stored(home_log(), id)
    if state is not None:
        result = result_with(state, task_of(state))
        _announce_finished(_sender(state.backend), result, WorkerEnded(_last_error(state)))


def _announce_finished(sender: Any, result: TaskResult, error: BaseException | None) -> None:
    """Send task_finished. Receivers log a failed task by logger.exception(): they are called while its error is
    handled."""
    if error is None:
        announce(task_finished, sender, task_result=result)
        return
    try:
        raise error
    except BaseException:
        announce(task_finished, sender, task_result=result)


def _last_error(state: TaskState) -> str:
    return state.errors[-1][1] if state.errors else "failed"


def _policy(state: TaskState) -> Policy:
    """Return what holds for a task. Raises ImportError if this process does not have it, nor its backend, and what else
    keeps it from being run."""
    task = found(state.path)
    try:
        backend = task_backends[state.backend]
    except InvalidTaskBackend as error:
        raise ImportError(f"TASKS has no backend {state.backend!r}, which enqueued it: {message_of(error)}") from error
    return policy_of(backend.options, getattr(task.func, OWN_OPTIONS, {}))


def _sender(backend: str) -> Any:
    """Return the class of a backend, which is what sends the signals of Tasks; None if TASKS has it no more."""
    try:
        return type(task_backends[backend])
    except Exception:  # it cannot be imported, either
        return None
