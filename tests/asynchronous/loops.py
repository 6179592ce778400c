"""Event loops of a test."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

T = TypeVar("T")


def in_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop, and close the connections that its database calls have opened; before, those
    that another test has left in their thread, whose server may have been restarted since."""

    async def run() -> T:
        await sync_to_async(connections.close_all)()
        try:
            return await main
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run())


async def until(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    """Let the loop run until the condition holds; raise AssertionError if it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s"
        await asyncio.sleep(0.01)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Occupied:
    """Keeps the thread of database calls busy inside, until the block ends or `free` is called."""

    def __init__(self) -> None:
        self._busy, self._free = threading.Event(), threading.Event()
        self.free = self._free.set

    async def __aenter__(self) -> "Occupied":
        self._call: Awaitable[Any] = asyncio.ensure_future(sync_to_async(self._occupy)())
        await until(self._busy.is_set)
        return self

    def _occupy(self) -> None:
        self._busy.set()
        self._free.wait(60)

    async def __aexit__(self, *raised: object) -> None:
        self.free()
        await self._call
