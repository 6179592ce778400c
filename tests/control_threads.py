"""What a consumer process knows of its partitions belongs to its control thread, and an attempt's outcome has one
writer. The guard notes everything else."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.settle_plan import Attempt

MAIN = threading.main_thread().ident  # a test looks at the partitions of the subscriber that it runs


class Guard:
    """trespasses: the threads that have touched the state of a partition which another thread has begun, and what of
    it; writers: the functions that have written the outcome of an attempt."""

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}
        self.trespasses: set[str] = set()
        self.writers: set[str] = set()

    def begin(self, stream: AssignedPartition) -> None:
        """The present thread is the partition's control thread."""
        self._owners[id(stream)] = threading.get_ident()

    def check(self, stream: AssignedPartition, name: str, operation: str) -> None:
        """Note a touch by any other thread, but for the tests' own."""
        if threading.get_ident() not in (self._owners.get(id(stream)), MAIN):
            self.trespasses.add(f"{threading.current_thread().name.rstrip('0123456789-')} {operation} {name}")

    def wrote(self, hand: Attempt) -> None:
        """Note which function writes an outcome; it belongs to the control thread, and is written once."""
        self.writers.add(sys._getframe(2).f_code.co_name)
        if hand.outcome is not None:
            self.writers.add("a second write")


@contextmanager
def guarded() -> Iterator[Guard]:
    """Watch every partition's state that is begun inside."""
    guard = Guard()
    initialize = AssignedPartition.__init__

    def begin(stream: AssignedPartition, *arguments: Any, **options: Any) -> None:
        guard.begin(stream)
        initialize(stream, *arguments, **options)

    def read(stream: AssignedPartition, name: str) -> Any:
        guard.check(stream, name, "reads")
        return object.__getattribute__(stream, name)

    def write(stream: AssignedPartition, name: str, value: Any) -> None:
        guard.check(stream, name, "writes")
        object.__setattr__(stream, name, value)

    def assign(hand: Attempt, name: str, value: Any) -> None:
        if name == "outcome" and value is not None:
            guard.wrote(hand)
        object.__setattr__(hand, name, value)

    watched = {"__init__": begin, "__getattribute__": read, "__setattr__": write}
    with mock.patch.multiple(AssignedPartition, **watched), mock.patch.object(Attempt, "__setattr__", assign):
        yield guard
