"""The subscriber: the life of one consumer process, which starts its parts, runs the loop, and stops them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.consumers.background.duties import CollectorTask, EffectTask, PeriodicTask, StatsRecorder
from sqlqueue.consumers.background.lease_renewer import LeaseRenewer
from sqlqueue.consumers.background.task import SELDOM, BackgroundTask
from sqlqueue.consumers.background.writer import RENEW_EVERY, NamedServerTask
from sqlqueue.consumers.declare.periodic import declared
from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.consumers.engine.loop import Loop
from sqlqueue.consumers.engine.reserved_threads import withdraw
from sqlqueue.consumers.handlers.connections import CONNECTIONS_LAST
from sqlqueue.core import forks
from sqlqueue.core.effects import with_header
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import lock_timeouts, retries, writer
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.server_identity import NotNamedServer, ServerChanged, SessionReplaced
from sqlqueue.database.transactions import refusal
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.leases import heartbeat, limit_shares
from sqlqueue.leases.heartbeat import Shown, Work
from sqlqueue.log import notifier
from sqlqueue.log.notifier import Listener
from sqlqueue.log.schedule import move_due
from sqlqueue.log.status import anything_due, anything_scheduled
from sqlqueue.operations.requests import carry_out
from sqlqueue.signals import announce, operation_retried, subscriber_started, subscriber_stopped

logger = logging.getLogger("sqlqueue")

HORIZON_TIMEOUT = 0.5  # seconds for which a start waits for the horizon; after that the loop goes on registering
NAMED_CHECK = 0.25  # seconds between two looks for the named server
ELSEWHERE_PAUSE = 1.0  # seconds before the next look for the named server
SESSION_PAUSE = 0.05  # seconds before the next iteration when a statement has run in an unknown session
DRAIN_CHECK = 0.2  # seconds between two checks whether anything is due


def refuse_transaction(log: Log) -> None:
    """Raise ConfigurationError where a consumer's statements would be part of a caller's transaction."""
    if why := refusal(log.connection):
        raise ConfigurationError(f"a consumer cannot run {why}")


class Subscriber(Loop):
    """Runs consumers: owns partitions, reads, dispatches, settles. `run_once` is one iteration; `run` goes on until
    `stop`. options: the loop's."""

    def __init__(self, consumers: Sequence[Consumer], *, background_tasks: bool = True, **options: Any):
        super().__init__(consumers, **options)
        transactions = [each.executor.transaction for each in self.subscriptions]
        self._troubles = [self.settler.trouble, *(each.trouble for each in transactions if each is not None)]
        for trouble in self._troubles:
            trouble.schema_differs = self._schema_differs
        self._with_background_tasks = background_tasks
        self._background_tasks: list[BackgroundTask] = []
        self._named_server: NamedServerTask | None = None
        self._unmet = False  # it goes on with another server, of which it is not known whether it has to be named
        self._name_due_at = 0.0
        self._effects: EffectTask | None = None
        self._address = ""  # where others tell it of news
        self._ending = ExitStack()  # what has to be closed, in the reverse order
        self._ending.callback(self.dispatcher.pool.close)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register the groups, write a heartbeat, start the background tasks."""
        refuse_transaction(self.log)
        self._keep_server_named()
        if self._named_server is not None:
            self._find_named_server()
        self.registration.start()
        give_up_at = self.clock() + HORIZON_TIMEOUT
        while self.registration.latest and not self.registration.register_latest(self.reader.log_end.horizon):
            if self.stopping or self.clock() > give_up_at:
                self.registration.warn_waiting()
                break
            time.sleep(0.01)
        self._ending.callback(notifier.listen(self.notify))
        if self._with_background_tasks and settings.WAKE:
            questions = self.settler.questions
            listener = Listener(settings.WAKE_ADDRESS, self.notify, questions.add)
            self._address, questions.send = listener.address, listener.send
            self._ending.callback(listener.close)
        for subscription in self.subscriptions:
            subscription.progressed_at = self.clock()
        self._lease_renewer = LeaseRenewer(
            self.ownership, settings.HEARTBEAT_INTERVAL, self._shown, self.lost.append, self.liveness
        )
        self._lease_renewer.beat()
        if (threads := self.dispatcher.reserved_threads) is not None:
            threads.starving = self.balance_soon
            self.withdraw = partial(withdraw, self.ownership, threads, self.in_flight, self._lease_renewer.beat)
        self._renew_at = self.clock() + settings.HEARTBEAT_INTERVAL
        if self._with_background_tasks:
            scheduler = BackgroundTask(self.log, "scheduler", SELDOM, lambda: move_due(self.log) > 0)
            requests = BackgroundTask(self.log, "requests", SELDOM, lambda: carry_out(self.log))
            collector = CollectorTask(self.log, settings.COLLECT_INTERVAL, settings.LEASE_DURATION)
            stats_recorder = StatsRecorder(self.log, self.settler.outcome_counter)
            self.scheduler, self.requests = scheduler, requests
            self._background_tasks = [self._lease_renewer, collector, stats_recorder, scheduler, requests]
            if with_header():
                self._effects = EffectTask(self.log, lambda: self.ownership.balancer.in_reserve)
                self.settler.tell_effects = self._effects.tell_of
                self._background_tasks.append(self._effects)
            if self.log == home_log() and (schedules := declared()):
                self._background_tasks.append(PeriodicTask(self.log, schedules))
            for task in self._background_tasks:
                self._start_task(task)
        group_topics = [subscription.group_topic for subscription in self.subscriptions]
        self.liveness.mark("started")
        fields = {"subscriber": self.name, "subscriptions": group_topics}
        announce(subscriber_started, Subscriber, **fields, database=self.log.label)

    def _keep_server_named(self) -> None:
        """Start what keeps a server named, where that is of any use: the present server may be a node of a cluster, or
        have the data of one, although the former one was not."""
        if self._with_background_tasks and self._named_server is None and writer.needs_writer(self.log):
            self._named_server = NamedServerTask(self.log, self._look_again)
            self._start_task(self._named_server)

    def _start_task(self, task: BackgroundTask) -> None:
        self._troubles.append(task.trouble)
        task.start()
        self._ending.callback(task.stop)

    def _renew_name(self, now: float) -> None:
        """Renew the name of the loop's server if the task, whose connection leads elsewhere, cannot."""
        if self._named_server is not None and self._named_server.elsewhere and now >= self._name_due_at:
            self._name_due_at = now + RENEW_EVERY
            writer.renew(self.log)

    def _find_named_server(self) -> None:
        """Wait until this thread is connected to the named server."""
        while not self.stopping:
            self.liveness.mark("iteration")
            try:
                self.ownership.server.make_sure()
                return
            except NotNamedServer as error:
                self.settler.trouble.elsewhere(self.log, error)
            time.sleep(NAMED_CHECK)

    def _look_again(self) -> None:
        """Let the loop, and all background tasks, look whether their server is the named one. From any thread."""
        self.ownership.server.doubtful = True
        self.awake.set()
        for task in self._background_tasks:
            task.wake()

    def _schema_differs(self, error: Error) -> None:
        """Stop because a table or a column is missing. What is in flight is settled if that is over in time."""
        if not self.failed:
            meaning = "a table or a column is missing: run `python manage.py migrate sqlqueue`; the process stops"
            logger.error(logfmt("tables_missing", subscriber=self.name, error=error, meaning=meaning))
            self._fail()

    def run_once_guarded(self) -> float:
        """Run one iteration; after a database error it is run again soon. Return for how many seconds the control
        thread may sleep. Raises database errors that no retry helps against."""
        self.liveness.mark("iteration")
        try:
            if self._unmet:
                self._keep_server_named()
                self._unmet = False
            self.ownership.server.make_sure()
            self._renew_name(self.clock())
            pause = self.run_once()
            self.settler.trouble.over()
            return pause
        except ServerChanged:
            self._unmet = True
            self.start_over()
            return 0.0
        except NotNamedServer as error:
            self._unmet = True
            if self.ownership.leases():
                self.start_over()
            self.settler.trouble.elsewhere(self.log, error)
            return ELSEWHERE_PAUSE
        except SessionReplaced as error:
            logger.warning(logfmt("session_replaced", subscriber=self.name, meaning=error))
            return SESSION_PAUSE
        except Error as error:
            self.ownership.server.doubtful = True
            kind = retries.classify(error)
            if kind in retries.FOR_GOOD:
                raise  # decisions may not have been written: only a fresh process is safe
            self.settler.trouble.failed(error)
            logger.warning(logfmt("iteration_failed", subscriber=self.name, error_kind=kind.name, error=error))
            facts = {"operation": "iteration", "error_kind": kind.name, "error": error}
            announce(operation_retried, Subscriber, **facts, database=self.log.label)
            retries.drop_connection(self.log)
            return 0.05 if kind is retries.ErrorKind.CONTENTION else self.settler.trouble.pause

    def renew_leases(self) -> None:
        """Renew the heartbeat and the leases when it is time. Without background tasks, the caller does so between two
        iterations."""
        self.liveness.mark("iteration")
        if self.clock() >= self._renew_at:
            self._lease_renewer.run_once()
            self._renew_at = self.clock() + settings.HEARTBEAT_INTERVAL

    def _shown(self) -> Shown:
        """Return what the process does now, for its heartbeat. From any thread."""
        now = self.clock()
        runs_for = self.in_flight.runs_for(now)
        work = {each.group_topic: Work(runs_for.get(each), now - each.progressed_at) for each in self.subscriptions}
        activity = f"{len(self.in_flight)} in flight of {len(self.ownership.leases())} partitions"
        return Shown(self._address, activity, self.reader.log_end.horizon.value, self.failing(), work)

    def failing(self) -> str:
        """Return what fails again and again for an error of the database, with the last one: background tasks, the
        loop, the transactions of atomic handlers. "" for nothing."""
        return "; ".join(filter(None, [each.failing for each in self._troubles]))

    def run(
        self,
        drain: bool = False,
        alive: Callable[[], bool] = lambda: True,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        """Run until `stop`; with `drain`, until everything due has been settled; or until `alive` returns False.

        Waits for a database that is unreachable. Every exit but a second signal releases the leases.
        """
        process = forks.generation
        with forks.hosting(), lock_timeouts.limited(self.log):
            ask_at = 0.0
            self.start()
            try:
                started()
                while not self.stopping and alive():
                    pause = self.run_once_guarded()
                    if drain and self.idle:
                        if self.clock() >= ask_at:
                            if not self.anything_due():
                                break
                            ask_at = self.clock() + DRAIN_CHECK
                        pause = min(pause, DRAIN_CHECK)
                    if pause > 0:
                        self.awake.wait(pause)
                    self.awake.clear()
                    if pause >= CONNECTIONS_LAST and retries.close_lost_connections():
                        self.ownership.server.doubtful = True
            finally:
                forks.leave_if_forked(process)
                self.close()

    @property
    def settled(self) -> int:
        """How many deliveries were settled so far."""
        return self.settler.settled

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, and nothing that was read could be dispatched now."""
        if self.in_flight or self.in_flight.reports or self.registration.latest:
            return False
        if self.reader.log_end.unprobed:
            return False  # positions would stay behind, too
        if self._effects is not None and not self._effects.idle:
            return False  # a callback may be about to be published
        now = self.clock()
        active = (subscription for subscription in self.subscriptions if not subscription.resting)
        return all(
            assigned.settled_up and ((due := assigned.delays.next_due()) is None or due > now)
            for subscription in active
            for assigned in subscription.assigned.values()
        )

    def anything_due(self) -> bool:
        """Return whether the tables hold anything that is due for any group that does not rest."""
        active = [subscription for subscription in self.subscriptions if not subscription.resting]
        try:
            # The schedule is read before the log: a message may move from the schedule to the log in between.
            return anything_scheduled(self.log, {subscription.consumer.topic for subscription in active}) or any(
                self.reader.unread(list(subscription.assigned.values()))
                or anything_due(
                    self.log,
                    *subscription.group_topic,
                    subscription.consumer.options.ordering,
                    set(subscription.assigned),
                )
                for subscription in active
            )
        except (ServerChanged, SessionReplaced):
            return True  # the loop will look at the server
        except Error as error:
            if retries.classify(error) in retries.FOR_GOOD:
                raise
            self.settler.trouble.failed(error)
            retries.drop_connection(self.log)
            return True

    def close(self) -> None:
        """Stop gracefully: wait for running handlers, settle, release the rest and the leases, delete the heartbeat."""
        self.stop()
        try:
            self._wind_down()
            self.dispatcher.apply_reports(self.clock())
            held = {each: each.holding for each in self.subscriptions if each.holding}
            self.settler.release(held, self.clock())
        finally:
            self._ending.close()
        if any(subscription.limiter is not None for subscription in self.subscriptions):
            retries.patiently(self.log, limit_shares.leave, self.log, self.name, give_up=self._out_of_time)
        retries.patiently(self.log, heartbeat.leave, self.log, self.name, give_up=self._out_of_time)
        announce(subscriber_stopped, Subscriber, subscriber=self.name, database=self.log.label)
        if self._with_background_tasks:
            connections.close_all()

    def _wind_down(self) -> None:
        self.in_flight.release_where(lambda execution, subscription: True)
        while self.in_flight and not self._out_of_time():
            self.run_once_guarded()
            self.awake.wait(0.2 if self.settler.trouble.failures else 0.02)
            self.awake.clear()
