"""Threads that publish to databases while a test changes something."""

import threading
import time
from collections.abc import Callable
from functools import partial

from django.db import connections


class Publishers:
    """Threads that publish numbered messages, as `publish` of a subclass does, each for keys of its own; and one more
    that moves what is relayed. pause: seconds between two calls. published: the numbers by key."""

    def __init__(self, threads: int, move_all: Callable[[], None], pause: float) -> None:
        self.published: dict[str, list[int]] = {}
        self.errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._move_all, self._pause = move_all, pause
        runs: list[Callable[[], None]] = [partial(self.publish, number) for number in range(threads)]
        self._threads = [threading.Thread(target=self._run, args=(run,), daemon=True) for run in (*runs, move_all)]

    def publish(self, thread: int) -> None:
        """Publish messages with the number `count`, and note it for each of their keys."""
        raise NotImplementedError

    def __enter__(self) -> "Publishers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
        self._move_all()
        assert not self.errors, self.errors

    @property
    def count(self) -> int:
        """How many have been published."""
        return sum(map(len, list(self.published.values())))

    def _run(self, once: Callable[[], None]) -> None:
        try:
            while not self._stopping.is_set():
                once()
                time.sleep(self._pause)
        except BaseException as error:
            self.errors.append(error)
        finally:
            connections.close_all()
