"""Subscribers in threads of the tests' own process, with real connections, and what their handlers saw."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db import connections

from sqlqueue.consumers.declare.registry import Consumer, build
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.delivery import Delivery
from tests.processes import wait_until


def consumer(topic: str, handler: Callable[..., Any], **options: Any) -> Consumer:
    """Return a consumer that is registered nowhere; options as for @consumer."""
    return replace(build(topic, options), handler=handler)


class Handled:
    """What handlers handled, in the order in which they ended; counts survive whatever is rolled back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.deliveries: list[Delivery] = []

    def __call__(self, delivery: Delivery) -> None:
        """Be a handler."""
        with self._lock:
            self.deliveries.append(delivery)

    @property
    def counts(self) -> Counter[str]:
        """How often each message, by its id, was handled."""
        with self._lock:
            return Counter(delivery.id for delivery in self.deliveries)

    def ids_by_key(self) -> dict[str, list[str]]:
        """The ids of each key's messages, in the order in which they were handled."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for delivery in self.deliveries:
                found.setdefault(delivery.key, []).append(delivery.id)
        return found


class RunningSubscriber:
    """A subscriber whose loop runs in a thread, from the start of the `with` block until its end, or until stop().

    What ends it too early is raised at the end.
    """

    def __init__(self, *consumers: Consumer, name: str = "", threads: int = 4, background_tasks: bool = True) -> None:
        self.subscriber = Subscriber(consumers, name=name, threads=threads, background_tasks=background_tasks)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"subscriber {name}", daemon=True)

    def __enter__(self) -> "RunningSubscriber":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def name(self) -> str:
        return self.subscriber.name

    def holding(self) -> set[int]:
        """The partitions that it holds, of all its topics."""
        return {partition for _, _, partition in self.subscriber.ownership.leases()}

    def start(self) -> None:
        """Return when its groups are registered and it is heard of."""
        self._thread.start()
        wait_until(lambda: self._started.is_set() or self._error, message="the subscriber has not started")
        self._raise()

    def stop(self) -> None:
        """End it gracefully, and return when it has released everything."""
        self.subscriber.stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.name} does not stop"
        self._raise()

    def _run(self) -> None:
        try:
            self.subscriber.run(started=self._started.set)
        except BaseException as error:  # it is raised where the test waits
            self._error = error
        finally:
            connections.close_all()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
