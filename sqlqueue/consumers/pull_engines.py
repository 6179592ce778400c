"""The engines of a pull loop: one for each database of its topic, whose deliveries come in one queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue

from sqlqueue.consumers.pull_engine import PullEngine
from sqlqueue.consumers.pulled_delivery import PulledDelivery
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core import forks
from sqlqueue.database.log import Log


class PullEngines:
    """One for each of these aliases. They start and end together: once one has ended, the pull loop has: its error is
    raised by `check`, and `join` ends the others. While a database does not answer, its engine waits for it, and the
    others go on."""

    def __init__(self, consumer: Consumer, logs: Sequence[Log], changed: Callable[[], None] = lambda: None):
        self.deliveries: SimpleQueue[PulledDelivery | None] = SimpleQueue()
        self._process = forks.generation
        self._engines = [PullEngine(consumer, log, self.deliveries, changed) for log in logs]

    def start(self) -> None:
        """Start their threads."""
        for engine in self._engines:
            engine.start()

    @property
    def started(self) -> bool:
        """Whether all have started; or have ended, perhaps before they could start."""
        return all(engine.started for engine in self._engines)

    def leave_if_forked(self) -> None:
        """End this process if it is a child that the receiver has forked: the engines are its parent's."""
        forks.leave_if_forked(self._process)

    @property
    def ended(self) -> bool:
        """Whether one has ended, so that the iteration has."""
        self.leave_if_forked()
        return any(engine.ended for engine in self._engines)

    @property
    def all_ended(self) -> bool:
        """Whether all have ended: their leases are released, and their connections closed."""
        return all(engine.ended for engine in self._engines)

    @property
    def stopping(self) -> bool:
        """Whether they have been asked to end."""
        return any(engine.stopping for engine in self._engines)

    def wait_until_started(self) -> None:
        """Block until all have started; raise the error that has kept one from that."""
        for engine in self._engines:
            engine.wait_until_started()

    def check(self) -> None:
        """Raise the error that has ended one, if one has."""
        for engine in self._engines:
            engine.check()

    def stop_soon(self) -> None:
        """Ask them, from a signal handler too, to end without waiting for what the receiver has not settled."""
        for engine in self._engines:
            engine.stop_soon()

    def stop(self) -> None:
        """The same, at once and not from a signal handler. A child that the receiver has forked ends here."""
        self.leave_if_forked()
        for engine in self._engines:
            engine.stop()

    def join(self) -> None:
        """Let all end, and block until they have."""
        self.stop()
        for engine in self._engines:
            engine.join()
