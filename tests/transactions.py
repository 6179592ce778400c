"""Transactions on connections of their own, which stay open as long as a test wants."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from django.db import connection, connections, transaction

T = TypeVar("T")


class OpenTransaction:
    """A transaction in a thread of its own: open until commit(), or rolled back at the end of the `with` block."""

    def __enter__(self) -> "OpenTransaction":
        self._thread = ThreadPoolExecutor(1, "transaction")
        self._atomic = transaction.atomic()
        self._open = True
        self.do(self._atomic.__enter__)
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.rollback()
        self.do(connections.close_all)
        self._thread.shutdown()

    def start(self, step: Callable[[], T]) -> "Future[T]":
        """Begin a step in the transaction, and do not wait for its end."""
        return self._thread.submit(step)

    def do(self, step: Callable[[], T]) -> T:
        """Run a step in the transaction, and return what it returns."""
        return self.start(step).result(60)

    def commit(self) -> None:
        """Commit, and run the hooks that wait for it."""
        self._open = False
        self.do(lambda: self._atomic.__exit__(None, None, None))

    def rollback(self) -> None:
        """Roll back."""
        self._open = False
        self.do(self._roll_back)

    def _roll_back(self) -> None:
        connection.set_rollback(True)
        self._atomic.__exit__(None, None, None)
