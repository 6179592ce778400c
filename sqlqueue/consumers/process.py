"""One consumer process: what a supervisor starts."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING

from sqlqueue.consumers.pulse import Pulse

if TYPE_CHECKING:
    from sqlqueue.consumers.ports import Ports
    from sqlqueue.observe.window import Window

logger = logging.getLogger("sqlqueue")

STOP, LEAVE = "stop", "leave"
INTERRUPTED = 130
SHOW_STACKS = signal.SIGUSR1  # where is every thread? On standard error, even from a process that hangs.


@dataclass(frozen=True, slots=True)
class Orders:
    """What a consumer process is to run. Plain values, for they cross a process boundary."""

    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    threads: int | None = None
    drain: bool = False
    verbosity: int = 1


def main(orders: Orders, name: str, line: Connection, pulse: Pulse) -> None:
    """Set up Django and run a subscriber until its work is done, a signal comes, or the supervisor says so or is
    gone."""
    import django

    # The terminal's Ctrl-C reaches the whole group; the supervisor passes it on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(RuntimeError, ValueError):  # where there is no standard error
        faulthandler.register(SHOW_STACKS)
    django.setup()
    serve(orders, name, line, pulse)


def serve(orders: Orders, name: str, line: Connection | None, pulse: Pulse, ports: Ports | None = None) -> None:
    """Run a subscriber in this process, whose main thread this is."""
    # A spawned process imports this module before Django is set up; what needs models has to wait for that.
    from sqlqueue.consumers.ports import Vitals, close_windows, open_windows, own_metrics
    from sqlqueue.consumers.registry import registry
    from sqlqueue.consumers.subscriber import Subscriber
    from sqlqueue.observe import logs

    logs.show(orders.verbosity)
    registry.discover()
    consumers = registry.select(orders.groups, orders.topics)
    subscriber = Subscriber(consumers, name=name, threads=orders.threads, pulse=pulse)

    def leave_or_stop(number: int, frame: FrameType | None) -> None:
        if subscriber.stopping:
            os._exit(INTERRUPTED)  # the second signal: at once; the leases expire, or the supervisor frees them
        subscriber.stop_soon()

    signal.signal(signal.SIGTERM, leave_or_stop)
    if line is None:
        signal.signal(signal.SIGINT, leave_or_stop)
    else:
        threading.Thread(target=_listen, args=(line, subscriber.stop), name="sqlqueue-orders", daemon=True).start()
    windows: list[Window] = []
    if ports is not None:
        windows = open_windows(ports, lambda: Vitals({name: pulse}, 0, subscriber.stopping), own_metrics)
    try:
        subscriber.run(drain=orders.drain)
    finally:
        close_windows(windows)
    if subscriber.failed:
        sys.exit(1)


def _listen(line: Connection, stop: Callable[[], None]) -> None:
    """Follow the supervisor's words; when it is gone, stop as if it had said so."""
    try:
        while line.recv() != LEAVE:
            stop()
    except (EOFError, OSError):
        stop()
    else:
        os._exit(INTERRUPTED)
